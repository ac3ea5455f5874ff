// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"beeline.io/beeline/test/lab"
)

// `status` says that a drain is running, and no agent, until when, and how many flows it serves; after its end half way
// also what to do, until an agent has restored the tables. A drain is taken for no agent by what meets it either.
func TestStatusOfDrain(t *testing.T) {
	w := borrowWorld(t, "--edge-mode=tc")
	w.apply("web", objects(w.public("b1"))...)
	conn := w.open("tcp", addresses(w.Host("node-a"), nodePort)[0])
	if pod := w.served(conn); pod != "b1" {
		t.Fatalf("%s serves, want b1", pod)
	}
	w.must(w.agent.Stop())
	drain := w.drain()
	pid := fmt.Sprintf("(pid %d)", drain.Process.Pid)
	w.eventually("status says that a drain runs", func() bool {
		out, _ := w.agent.CLI("status")
		return strings.Contains(out, "Draining: `beeline cleanup --drain` is running "+pid)
	})
	w.wantExit(4, "1 warning.", "new connections and flows pass to another proxy of the node; the flows of clients that are known (1) are served until they end, or until 20", "what to do: wait for its end")
	for command, want := range map[string]string{
		"cleanup":              fmt.Sprintf("`beeline cleanup --drain` is running on %s with pid %d: wait for its end, end it (`kill %[2]d`)", w.agent.BPFFS(), drain.Process.Pid),
		"cleanup --stop-agent": fmt.Sprintf("is running on %s with pid %d: wait for its end", w.agent.BPFFS(), drain.Process.Pid),
	} {
		_, err := w.agent.CLI(strings.Fields(command)...)
		if exit, ok := errors.AsType[*exec.ExitError](err); !ok || !strings.Contains(string(exit.Stderr), want) {
			t.Errorf("%s during a drain: %v, want %q", command, err, want)
		}
	}
	if err := w.agent.Start(); err == nil || !strings.Contains(err.Error(), "`beeline cleanup --drain` is running") {
		t.Errorf("an agent that starts during a drain: %v", err)
	}
	if pod := w.served(conn); pod != "b1" {
		t.Errorf("during the drain %s serves, want b1", pod)
	}
	w.must(drain.Process.Signal(syscall.SIGKILL))
	drain.Wait()
	w.wantExit(3, "1 error.", "DrainInterrupted: `beeline cleanup --drain` was ended half way, and no agent is running", "that are known (1) are served", "repeat `beeline cleanup --drain`", "or start the agent")
	w.must(w.agent.Start())
	w.wantExit(0, "All is well.")
	w.must(w.agent.Kill())
	w.wantExit(3, "AgentNotRunning")
	if pod := w.served(conn); pod != "b1" {
		t.Errorf("after the drain %s serves, want b1", pod)
	}
}

// A drain waits for as long as the agent's timeouts keep a flow, whatever the defaults are.
func TestTimeoutsOfDrain(t *testing.T) {
	w := borrowWorld(t, "--edge-mode=tc", "--conntrack-tcp-timeout-established=1s")
	w.apply("web", objects(w.public("b1"))...)
	if pod := w.served(w.open("tcp", addresses(w.Host("node-a"), nodePort)[0])); pod != "b1" {
		t.Fatalf("%s serves, want b1", pod)
	}
	w.must(w.agent.Stop())
	if out, err := w.agent.CLI("cleanup", "--drain=20s"); err != nil || !strings.Contains(out, "no flow of a client is left") {
		t.Errorf("a drain with an idle flow: %v, %q", err, out)
	}
	w.must(w.agent.Start())
}

// drain starts a drain.
func (w *world) drain() *lab.Cmd {
	w.t.Helper()
	cmd := w.agent.Host.Command(w.t.Context(), program, "cleanup", "--drain=10m", "--pins", w.agent.BPFFS(), "--agent-socket", w.agent.Socket())
	cmd.Stdout = &bytes.Buffer{}
	w.must(cmd.Start())
	w.t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return cmd
}
