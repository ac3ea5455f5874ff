// SPDX-License-Identifier: Apache-2.0

// Command bench measures what Beeline costs and saves, on this machine, in labs of network namespaces.
// docs/measure/how.md says how, and how to read the results.
//
// Each part has a function that measures, which gives every sample to b.Results.Add (see package result), and
// one that prints only from the results: `bench doc` prints a file's.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"beeline.io/beeline/bench/balancer"
	"beeline.io/beeline/bench/changes"
	"beeline.io/beeline/bench/control"
	"beeline.io/beeline/bench/edge"
	"beeline.io/beeline/bench/endpoint"
	"beeline.io/beeline/bench/endurance"
	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/bench/hoststack"
	"beeline.io/beeline/bench/instructions"
	"beeline.io/beeline/bench/mesh"
	"beeline.io/beeline/bench/offload"
	"beeline.io/beeline/bench/pods"
	"beeline.io/beeline/bench/rates"
	"beeline.io/beeline/bench/sockets"
	"beeline.io/beeline/test/lab"
)

// parts are all of them, in the order in which they run and are printed. What two of them measure depends on flags.
func parts(e *endurance.Settings, peers []*edge.Peer) []harness.Part {
	return []harness.Part{
		sockets.Part, sockets.Hook, sockets.Statistics, pods.Part, offload.Part, mesh.Part, edge.Part(peers), rates.Part, balancer.Part,
		control.Part, changes.Part, endurance.Part(e), hoststack.Part, instructions.Part,
	}
}

func partNames() []string {
	var names []string
	for _, p := range parts(nil, nil) {
		names = append(names, p.Name)
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
