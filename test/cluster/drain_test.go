// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"beeline.io/beeline/test/controlplane"
	"beeline.io/beeline/test/node"
)

// The way back to kube-proxy: `cleanup --drain` leaves new flows to kube-proxy at once, serves those that Beeline has
// translated until they end or its time is over, and then names the rest. No flow of kube-proxy's is lost.
func TestDrain(t *testing.T) {
	t.Parallel()
	const limit = 20 * time.Second
	b := newBeside(t, controlplane.NFTables)
	agent := b.NewAgent(beeline, b.Lab.Host("node-a"))
	agent.Log, agent.Flags = &node.Log{}, []string{"--edge-mode=tc"}
	must(t, agent.Start())
	b.atMark(t, agent)
	ours := slices.DeleteFunc(slices.Clone(b.flows(0)), func(f *besideFlows) bool { return f.from != "client" || f.network != "tcp" })
	for _, f := range ours {
		must(t, f.open(within(t, patience), b.Cluster, 1))
	}
	if out, err := agent.CLI("cleanup", "--drain="+limit.String()); err == nil {
		t.Errorf("while the agent runs, cleanup prints %q", out)
	}
	must(t, agent.Stop())
	b.interruptsDrain(agent)
	must(t, agent.Start())
	b.atMark(t, agent)
	must(t, ours[0].open(within(t, patience), b.Cluster, 1)) // a second one, which an agent serves again
	for _, f := range ours {
		if lost, err := f.ask(10 * time.Second); lost > 0 {
			t.Errorf("%s: lost by a drain that was interrupted: %v", f.what, err)
		}
	}
	ours[0].conns[1].Close()
	ours[0].conns = ours[0].conns[:1]
	must(t, agent.Stop())
	type result struct {
		out string
		err error
	}
	ended := make(chan result, 1)
	go func() {
		out, err := agent.CLI("cleanup", "--drain="+limit.String())
		ended <- result{out, err}
	}()
	b.awaitWithdrawn(agent)
	theirs := b.flows(1)
	for _, f := range ours {
		if lost, err := f.ask(10 * time.Second); lost > 0 {
			t.Errorf("%s: lost in the drain: %v", f.what, err)
		}
	}
	for _, f := range ours[1:] {
		f.close()
	}
	r := <-ended
	if r.err != nil || !strings.Contains(r.out, fmt.Sprintf("left after %v, and ended now: 1 flow of clients", limit)) ||
		!strings.Contains(r.out, fmt.Sprintf("TCP %s to %s (default/%s)", ours[0].conns[0].LocalAddr(), ours[0].to, besideServices[0].name)) {
		t.Errorf("cleanup prints %q, %v; want one flow left, from %s to %s", r.out, r.err, ours[0].conns[0].LocalAddr(), ours[0].to)
	}
	for _, f := range theirs {
		if lost, err := f.ask(10 * time.Second); lost > 0 {
			t.Errorf("%s: opened in the drain, lost by the cleanup: %v", f.what, err)
		}
	}
}

// awaitWithdrawn waits until no Service is in the tables.
func (b *beside) awaitWithdrawn(agent *node.Agent) {
	b.t.Helper()
	eventually(b.t, "no Service is in the tables", func() error {
		out, err := agent.CLI("service", "list", "--pins")
		if err == nil && strings.Contains(out, besideServices[0].name) {
			err = fmt.Errorf("beeline service list prints:\n%s", out)
		}
		return err
	})
}

// interruptsDrain starts a drain, and interrupts it: nothing is detached.
func (b *beside) interruptsDrain(agent *node.Agent) {
	b.t.Helper()
	cmd := agent.Host.Command(b.t.Context(), beeline, "cleanup", "--drain=10m", "--pins", agent.BPFFS(), "--agent-socket", agent.Socket())
	var out bytes.Buffer
	cmd.Stderr = &out
	must(b.t, cmd.Start())
	b.awaitWithdrawn(agent)
	must(b.t, cmd.Process.Signal(syscall.SIGTERM))
	if err := cmd.Wait(); err == nil || !strings.Contains(out.String(), "nothing is detached") {
		b.t.Errorf("an interrupted drain ends with %v: %s", err, &out)
	}
}
