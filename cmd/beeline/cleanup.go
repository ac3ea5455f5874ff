// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/agent"
	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/pinfs"
	"beeline.io/beeline/internal/cluster/source/kube"
	"beeline.io/beeline/internal/util/plural"
)

// cleanupOptions are the flags of `beeline cleanup`.
type cleanupOptions struct {
	pins, socket                    string
	daemonSet, nodeName, kubeconfig string
	stopAgent                       bool
	drain                           time.Duration
}

func newCleanupCommand() *cobra.Command {
	var o cleanupOptions
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Detach everything and restore the node",
		Long: `Detaches all programs and removes all tables, pins and mounts that an agent created.
Refused while an agent is running. Services are no longer translated
afterwards. TCP connections that a socket hook has translated continue; UDP
sockets that it has connected to a backend are ended with ECONNABORTED, because
nothing would tell them when their backend goes.

With --drain new connections and flows pass at once to another proxy of the
node, such as kube-proxy, which has to run. Flows of clients outside the
cluster that Beeline has translated are served until they end, or for the
given time; those that are left then are listed, and end.`,
		Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return exitError{exitUsage, err}
			}
			return o.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	host, _ := os.Hostname() // without one, --node-name is empty, and required with --daemonset
	fs := cmd.Flags()
	fs.StringVar(&o.pins, pinsFlag, api.DefaultBPFFS, "directory of the agent's pinned objects")
	fs.StringVar(&o.socket, socketFlag, api.DefaultSocket, "unix socket that a killed agent may have left behind")
	fs.StringVar(&o.daemonSet, "daemonset", "", "NAMESPACE/NAME of the agent's DaemonSet: refuse while it selects this node; \"\" to ask nobody")
	fs.StringVar(&o.nodeName, "node-name", strings.ToLower(host), "name of this node's Node object, for --daemonset")
	fs.Lookup("node-name").DefValue = "the host name"
	fs.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig file of the API server, for --daemonset (default: the service account of the pod)")
	fs.BoolVar(&o.stopAgent, "stop-agent", false, "stop an agent that is running on --pins, instead of refusing")
	fs.DurationVar(&o.drain, "drain", 0, "before anything is detached, leave new flows to another proxy and wait for this long until those of clients outside the cluster have ended; 0 for not at all")
	return cmd
}

// check validates the flags.
func (o *cleanupOptions) check() error {
	switch {
	case !filepath.IsAbs(o.pins):
		return fmt.Errorf("--pins %q: not an absolute path", o.pins)
	case o.daemonSet != "" && o.nodeName == "":
		return errors.New("--node-name is empty: --daemonset needs it")
	case o.drain < 0:
		return errors.New("--drain is negative: give a duration such as 10m, or 0 for none")
	case o.daemonSet == "" && o.kubeconfig != "":
		return errors.New("--kubeconfig has no effect without --daemonset")
	}
	return nil
}

// run cleans up after its checks.
func (o *cleanupOptions) run(ctx context.Context, out io.Writer) error {
	if err := checkCapabilities(); err != nil {
		return err
	}
	if o.daemonSet != "" {
		if err := kube.NotSelected(ctx, o.kubeconfig, o.daemonSet, o.nodeName); err != nil {
			return err
		}
	}
	if o.stopAgent {
		if err := stopAgent(ctx, out, o.pins); err != nil {
			return err
		}
	}
	var err error
	if o.drain > 0 {
		err = drain(ctx, out, o.pins, o.drain)
	}
	if err == nil {
		err = cleanup(out, o.pins, o.socket)
	}
	if locked := (*pinfs.LockedError)(nil); errors.As(err, &locked) && !locked.Drain {
		return fmt.Errorf("%w; or let cleanup stop it, with --stop-agent", err)
	}
	return err
}

// maxListed is how many of the remaining flows are listed.
const maxListed = 50

// drain waits until the flows of clients have ended, and lists those that have not.
func drain(ctx context.Context, out io.Writer, pins string, limit time.Duration) error {
	left, err := agent.Drain(ctx, pins, limit, func(text string) { fmt.Fprintln(out, text) })
	if errors.As(err, new(*pinfs.LockedError)) { // nothing has been done
		return err
	}
	if err != nil {
		return fmt.Errorf("--drain: %w; nothing is detached, and new flows may pass to another proxy already: repeat the command, or start the agent, which serves all Services again", err)
	}
	if len(left) == 0 {
		_, err := fmt.Fprintln(out, "no flow of a client is left")
		return err
	}
	fmt.Fprintf(out, "left after %v, and ended now: %s\n", limit, plural.Of(len(left), "flow", "of clients"))
	for _, f := range left[:min(len(left), maxListed)] {
		fmt.Fprintf(out, "  %s %s to %s (%s), backend %s: %s, idle for %.0f s\n", f.Protocol, f.Client, f.Address, f.Service, f.Backend, f.State, f.IdleSeconds)
	}
	if more := len(left) - maxListed; more > 0 {
		fmt.Fprintf(out, "  and %d more\n", more)
	}
	return nil
}

// stopTimeout is how long an agent may take to stop. It needs less than a second.
const stopTimeout = 30 * time.Second

// stopAgent ends the agent that runs on a directory of pins, as a service manager does, and waits for its end.
func stopAgent(ctx context.Context, out io.Writer, pins string) error {
	running, pid := bpf.AgentRunning(pins)
	if !running {
		return nil
	}
	if pid == 0 {
		return fmt.Errorf("the agent that is running on %s is in another PID namespace: run cleanup in the host's (hostPID), or stop it there", pins)
	}
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return fmt.Errorf("open the agent's process %d: %w", pid, err)
	}
	defer unix.Close(process)
	if still, now := bpf.AgentRunning(pins); !still || now != pid { // the pid may be another process's by now
		return fmt.Errorf("the agent on %s has just been replaced: repeat the command", pins)
	}
	for _, signal := range []unix.Signal{unix.SIGTERM, unix.SIGCONT} { // a stopped process takes the first after the second
		if err := unix.PidfdSendSignal(process, signal, nil, 0); err != nil {
			return fmt.Errorf("stop the agent with pid %d: %w", pid, err)
		}
	}
	if err := awaitExit(ctx, process); err != nil {
		return fmt.Errorf("stop the agent with pid %d: %w%s: end it by `kill -9 %d`, and repeat the command; the attached programs keep serving until then", pid, err, processState(pid), pid)
	}
	_, err = fmt.Fprintf(out, "stopped the agent with pid %d\n", pid)
	return err
}

// processState says why a process may not take a signal, by the state in /proc/PID/stat (proc(5)); "" for no such
// reason.
func processState(pid int) string {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, state, _ := strings.Cut(string(stat), ") ") // the name before it may have any characters
	switch {
	case strings.HasPrefix(state, "D"):
		return ", and waits in the kernel"
	case strings.HasPrefix(state, "T"):
		return ", and has been stopped again"
	case strings.HasPrefix(state, "t"):
		return ", and a debugger has stopped it"
	}
	return ""
}

// awaitExit waits until a process has ended.
func awaitExit(ctx context.Context, pidfd int) error {
	for end := time.Now().Add(stopTimeout); time.Now().Before(end); {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 100)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if n > 0 {
			return nil
		}
	}
	return fmt.Errorf("it is still running after %v", stopTimeout)
}

// cleanup reports what it removed. If nothing was pinned there, it names the directories that hold Beeline's
// objects.
func cleanup(out io.Writer, pins, socket string) error {
	found := bpf.HasPins(pins)
	notes, err := agent.Cleanup(pins, socket, agent.Components())
	for _, note := range notes {
		fmt.Fprintln(out, note)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, cleanedText(found, pins, bpf.AgentDirectories()))
	return err
}

// cleanedText says what cleanup has removed. others are the directories that still hold objects of an agent.
func cleanedText(found bool, pins string, others []string) string {
	switch {
	case found:
		return fmt.Sprintf("nothing of Beeline is left under %s", pins)
	case len(others) > 0:
		return fmt.Sprintf("nothing of Beeline was under %s, so nothing has been detached; it is under %s: select it with --pins", pins, strings.Join(others, ", "))
	}
	return fmt.Sprintf("nothing of Beeline was under %s, nor on any other BPF file system mounted here", pins)
}
