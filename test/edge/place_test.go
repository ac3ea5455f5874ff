// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"errors"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/test/node"
)

// runAt runs the program on a host, and returns its output and its exit code.
func (w *world) runAt(host string, args ...string) (string, int) {
	w.t.Helper()
	out, err := w.Host(host).Command(context.Background(), append([]string{program}, args...)...).CombinedOutput()
	exit := &exec.ExitError{}
	if err != nil && !errors.As(err, &exit) {
		w.t.Fatal(err)
	}
	if err == nil {
		return string(out), 0
	}
	return string(out), exit.ExitCode()
}

// TestWrongPlace: a command in another network namespace than the agent's, an agent there, and an agent whose
// Node has other addresses each have a message and an exit code.
func TestWrongPlace(t *testing.T) {
	w := startWorld(t)
	w.apply("web", objects(w.public("a1"))...)
	pins := w.agent.BPFFS()
	to := netip.AddrPortFrom(w.Host("node-a").Addr4, nodePort).String()
	for _, c := range []struct {
		host string
		exit int
		says string
		args []string
	}{
		{"node-a", 0, "default/web", []string{"explain", "packet", "--pins", pins, "198.51.100.7", to}},
		{"node-b", 2, "another network namespace", []string{"explain", "packet", "--pins", pins, "198.51.100.7", to}},
		{"node-b", 2, "another network namespace", []string{"explain", "connect", "--pins", pins, w.Host("a1").Addr4.String(), to}},
		{"node-b", 3, "another network namespace", []string{"status", "--pins", pins}},
		{"node-b", 3, "(index ", []string{"status", "-v", "--pins", pins}}, // another device has the index there
	} {
		if out, exit := w.runAt(c.host, c.args...); exit != c.exit || !strings.Contains(out, c.says) {
			t.Errorf("at %s %q: exit code %d, want %d and %q:\n%s", c.host, c.args, exit, c.exit, c.says, out)
		}
	}
	w.must(w.agent.Stop())
	out, exit := w.runAt("node-b", "agent", "--manifests", w.folder.Path, "--node-name", "node-b", "--pins", pins,
		"--agent-socket", filepath.Join(t.TempDir(), "s"), "--cgroup-root", w.Host("node-b").CgroupRoot)
	if exit != 1 || !strings.Contains(out, "serves another network namespace") {
		t.Errorf("an agent in another namespace: exit code %d:\n%s", exit, out)
	}
	// The agent of node-a is given the name of node-b, which has other addresses.
	w.agent.Flags = append(w.agent.Flags, "--node-name=node-b")
	w.must(w.agent.Start())
	w.must(w.agent.WaitFor("a complaint", func(s *api.Status) bool { return s.NodeAddressMissing }))
	if out, exit := w.runAt("node-a", "status", "--agent-socket", w.agent.Socket()); exit != 3 || !strings.Contains(out, `no device here has an address of Node "node-b"`) {
		t.Errorf("status: exit code %d:\n%s", exit, out)
	}
}

// TestTwoAgents: a second agent with other pins is refused at the same cgroup, and serves no device that the
// first one serves; no packet is handled twice.
func TestTwoAgents(t *testing.T) {
	w := startWorld(t, "--edge-mode=tc")
	w.apply("web", objects(w.public("a1"))...)
	host := w.Host("node-a")
	second := &node.Agent{Host: host, Name: "second", Program: program, Manifests: w.folder.Path, MaxFlows: fewFlows, Log: w.agent.Log,
		Flags: []string{"--edge-mode=tc", "--cgroup-root", w.Host("a1").Cgroup}}
	out, exit := w.runAt("node-a", "agent", "--manifests", w.folder.Path, "--node-name", "node-a",
		"--pins", second.BPFFS(), "--agent-socket", second.Socket(), "--cgroup-root", host.CgroupRoot)
	if exit != 1 || !strings.Contains(out, "another Beeline is attached to the cgroup") {
		t.Errorf("a second agent at the cgroup: exit code %d:\n%s", exit, out)
	}
	t.Cleanup(func() { w.must(second.Kill()) })
	w.must(second.StartOnly())
	w.must(second.WaitFor("refused at the device", func(s *api.Status) bool {
		return strings.Contains(s.Conditions.String(), "another Beeline serves the device already")
	}))
	if out, exit := w.runAt("node-a", "status", "--agent-socket", second.Socket()); exit != 3 {
		t.Errorf("status of the second: exit code %d:\n%s", exit, out)
	}
	if c := w.status().Conditions.Wrong(); len(c) > 0 {
		t.Errorf("the first has conditions:\n%s", c)
	}
	w.wantServed("tcp", netip.AddrPortFrom(host.Addr4, nodePort), "a1")
}

// TestForcedXDPThatLoses: XDP at a veth whose peer does not accept what XDP sends loses all packets to other
// nodes. Status says so, and what to do.
func TestForcedXDPThatLoses(t *testing.T) {
	w := newWorld(t)
	w.agent.Flags = append(w.agent.Flags, "--edge-mode=xdp")
	w.must(w.agent.Start())
	w.apply("web", objects(w.public("b1"))...)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	to := netip.AddrPortFrom(w.Host("node-a").Addr4, nodePort).String()
	if _, err := w.Host("client").Request(ctx, "tcp", to, "hello"); err == nil {
		t.Fatal("a request was answered by XDP through a veth without GRO at its peer, which accepts nothing from XDP")
	}
	if out, exit := w.runAt("node-a", "status", "--agent-socket", w.agent.Socket()); exit != 3 || !strings.Contains(out, "packets that XDP sent") {
		t.Errorf("status: exit code %d:\n%s", exit, out)
	}
}
