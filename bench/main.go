// SPDX-License-Identifier: Apache-2.0

// Command bench measures what Beeline costs and saves, on this machine, in labs of network namespaces.
// docs/measure/how.md says how, and how to read the results.
//
// Each part has a function that measures, which gives every sample to b.results.Add (see package result), and
// one that prints only from the results: `bench doc` prints a file's.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"beeline.io/beeline/bench/endpoint"
	"beeline.io/beeline/test/lab"
)

// A part measures one thing, in labs of its own.
type part struct {
	name string // as in its rows
	text string
	// named means that it is measured only if selected by name.
	named bool
	run   func(context.Context, *bench) error
	print func(*report)
}

const (
	partSockets    = "sockets"
	partHook       = "hook"
	partStatistics = "statistics"
	partPods       = "pods"
	partOffload    = "offload"
	partMesh       = "mesh"
	partEdge       = "edge"
	partRates      = "rates"
	partBalancer   = "balancer"
	partControl    = "control"
	partChanges    = "changes"
	// It takes longer than all others.
	partEndurance = "endurance"
	// It needs programs of its own.
	partHostStack = "hoststack"
	// Not on a real machine.
	partInstructions = "instructions"
)

var parts = []part{
	{name: partSockets, text: "requests through a ClusterIP beside the direct way", run: runSockets, print: printSockets},
	{name: partHook, text: "what the programs at connect(2), sendmsg(2) and recvmsg(2) themselves cost", run: runHook, print: printHooks},
	{name: partStatistics, text: "what it costs to count connections at sockets", run: runStatistics, print: printStatistics},
	{name: partPods, text: "traffic between pods through the stack and past it", run: runPods, print: printPods},
	{name: partOffload, text: "forwarded traffic through the stack of a router and past it", run: runOffload, print: printOffload},
	{name: partMesh, text: "an application and the proxy in its pod: by netfilter, by the hook, and past TCP", run: runMesh, print: printMesh},
	{name: partEdge, text: "what the programs at devices cost for each packet", run: runEdge, print: printEdge},
	{name: partRates, text: "packets through balancers: CPU time for each, and how many a core takes", run: runRates, print: printRates},
	{name: partBalancer, text: "a client and two web servers, by Beeline and by other balancers", run: runBalancer, print: printBalancer},
	{name: partControl, text: "start, change and memory of the agent with many Services", run: runControl, print: printControl},
	{name: partChanges, text: "one change until a new connection sees it: from files, from an API server, and with kube-proxy", run: runChanges, print: printChanges},
	{name: partEndurance, text: "what load and floods over time do to new connections and to idle ones", named: true, run: runEndurance, print: printEndurance},
	{name: partHostStack, text: "programs that talk through shared memory, beside the kernel's loopback", named: true, run: runHostStack, print: printHostStack},
	{name: partInstructions, text: "instructions for each packet through balancers, IPVS among them, in an emulated machine", named: true, run: runInstructions, print: printInstructions},
}

func partNames() []string {
	var names []string
	for _, p := range parts {
		names = append(names, p.name)
	}
	return names
}

func main() {
	lab.Main() // these two do not return in the processes that they start
	endpoint.Main()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// command is the command line.
func command() *cobra.Command {
	root := runCommand()
	root.SilenceErrors, root.SilenceUsage = true, true
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(chartCommand(), compareCommand(), docCommand(), experimentCommand())
	return root
}
