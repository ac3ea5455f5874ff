// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"beeline.io/beeline/internal/bpf"
)

// attached lists what is attached to the node's devices.
func (w *world) attached() (all []bpf.EdgeAttachment) {
	w.t.Helper()
	w.must(w.agent.Host.Do(func() (err error) {
		all, err = bpf.EdgeAttachments(w.agent.BPFFS())
		return err
	}))
	return all
}

// R37: clients are served while no agent is running, new ones too; the next agent replaces the programs in
// place, and flows continue.
func TestClientsOutliveTheAgent(t *testing.T) {
	for _, mode := range []string{"tc", "xdp"} {
		t.Run(mode, func(t *testing.T) {
			w := borrowWorld(t, "--edge-mode="+mode)
			w.apply("web", objects(w.public("b1"))...)
			var conns []net.Conn
			for _, to := range addresses(w.Host("node-a"), nodePort) {
				conns = append(conns, w.open("tcp", to), w.open("udp", to))
			}
			wantServed := func(when string) {
				t.Helper()
				for _, conn := range conns {
					if pod := w.served(conn); pod != "b1" {
						t.Errorf("%s %s is served by %s", when, conn.LocalAddr(), pod)
					}
				}
			}
			wantServed("with an agent")
			before := w.attached()
			w.must(w.agent.Kill())
			wantServed("without an agent")
			w.wantServed("tcp", addresses(w.Host("node-a"), nodePort)[0], "b1")
			w.must(w.agent.Start())
			wantServed("with another agent")
			after := w.attached()
			if !slices.EqualFunc(before, after, func(a, b bpf.EdgeAttachment) bool {
				return a.Hook == b.Hook && a.LinkID == b.LinkID && a.ProgramID != b.ProgramID
			}) {
				t.Errorf("attached before: %+v, after: %+v", before, after)
			}
		})
	}
}

// Cleanup removes all of the edge, and so does an agent without one.
func TestEdgeIsTakenAway(t *testing.T) {
	w := startWorld(t, "--edge-mode=xdp")
	if n := len(w.attached()); n != 3 {
		t.Fatalf("%d hooks are attached, want 3", n)
	}
	w.must(w.agent.Stop())
	w.agent.Flags = []string{"--edge-mode=off"}
	w.must(w.agent.Start())
	if left := w.attached(); len(left) > 0 {
		t.Errorf("left by --edge-mode=off: %+v", left)
	}
	if c := w.status().Conditions.Wrong(); len(c) > 0 {
		t.Errorf("conditions:\n%s", c)
	}
	w.must(w.agent.Stop())
	w.agent.Flags = nil
	w.must(w.agent.Start())
	w.must(w.agent.Stop())
	if n := len(w.attached()); n != 2 {
		t.Fatalf("%d hooks are attached, want 2", n)
	}
	_, err := w.agent.CLI("cleanup")
	w.must(err)
	if left := w.attached(); len(left) > 0 {
		t.Errorf("left by cleanup: %+v", left)
	}
	if _, err := os.Stat(w.agent.BPFFS()); !os.IsNotExist(err) {
		t.Errorf("pins are left: %v", err)
	}
}

// What somebody detaches while the agent runs is attached again.
func TestEdgeIsRepaired(t *testing.T) {
	w := startWorld(t, "--edge-mode=xdp", "--audit-interval=100ms")
	w.apply("web", objects(w.public("b1"))...)
	before := w.attached()
	pins, err := filepath.Glob(w.agent.BPFFS() + "/links/edge-*")
	w.must(err)
	for _, pin := range pins {
		w.must(detach(pin))
	}
	w.eventually("three other links are there", func() bool {
		now := w.attached()
		return len(now) == 3 && !slices.ContainsFunc(now, func(a bpf.EdgeAttachment) bool {
			return slices.ContainsFunc(before, func(b bpf.EdgeAttachment) bool { return a.LinkID == b.LinkID })
		})
	})
	w.wantServed("tcp", addresses(w.Host("node-a"), nodePort)[0], "b1")
}
