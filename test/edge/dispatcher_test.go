// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"beeline.io/beeline/test/needs"
)

// newShared is a world in which libxdp attaches other programs to the node's device: the distribution's
// xdp-loader and xdp-filter.
func newShared(t *testing.T, flags ...string) *world {
	t.Helper()
	needs.Kernel(t, needs.Replacement)
	if _, err := exec.LookPath("xdp-filter"); err != nil {
		t.Fatalf("%v: `make setup` installs it (Debian package xdp-tools)", err)
	}
	w := newWorld(t, append(flags, "--edge-mode=xdp")...)
	w.agent.Env = []string{"LIBXDP_BPFFS=" + w.agent.Host.BPFFS}
	return w
}

// inPrivate runs a command with the node's own BPF file system and /run where libxdp's tools expect them.
const inPrivate = `mount --bind "$0" /sys/fs/bpf && mkdir -p "$1" && mount --bind "$1" /run && shift && exec "$@"`

// try runs one of libxdp's tools on the node.
func (w *world) try(args ...string) (string, error) {
	h := w.agent.Host
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	command := append([]string{"unshare", "--mount", "sh", "-c", inPrivate, h.BPFFS, h.RunDir + "/xdp"}, args...)
	out, err := h.Command(ctx, command...).CombinedOutput()
	return string(out), err
}

func (w *world) tool(args ...string) string {
	w.t.Helper()
	out, err := w.try(args...)
	if err != nil {
		w.t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// filter is the program that xdp-filter loads.
const filter = "xdpfilt_alw_all"

// wantServedShared checks that b1 serves, over both families, by XDP.
func (w *world) wantServedShared() {
	w.t.Helper()
	for _, to := range addresses(w.Host("node-a"), nodePort) {
		for _, network := range []string{"tcp", "udp"} {
			w.wantAnswered(network, to)
		}
	}
	w.wantMode("xdp")
}

// wantAnswered asks an address once.
func (w *world) wantAnswered(network string, to netip.AddrPort) {
	w.t.Helper()
	if answer, err := w.ask(network, to); err != nil || answer.Pod != "b1" {
		w.t.Errorf("%s to %s: %+v, %v; the edge counted %v", network, to, answer, err, w.edgeCounters())
	}
}

// programIn is the ID of Beeline's program at eth0.
func (w *world) programIn() uint32 {
	w.t.Helper()
	for _, d := range w.status().Edge.Devices {
		for _, p := range d.XDPChain {
			if p.Own {
				return p.ID
			}
		}
	}
	w.t.Fatalf("Beeline is in no dispatcher: %+v", w.status().Edge.Devices)
	return 0
}

// chain is the programs at eth0, in the order in which they run: "xdpfilt_alw_all, Beeline".
func (w *world) chain() string {
	w.t.Helper()
	var names []string
	for _, d := range w.status().Edge.Devices {
		for _, p := range d.XDPChain {
			if p.Own {
				names = append(names, "Beeline")
			} else {
				names = append(names, p.Name)
			}
		}
	}
	return strings.Join(names, ", ")
}

func (w *world) wantChain(want string) {
	w.t.Helper()
	w.eventually("eth0 is shared by "+want, func() bool { return w.chain() == want })
}

// dispatchers are the directories of libxdp's pins.
func (w *world) dispatchers() []string {
	w.t.Helper()
	entries, err := os.ReadDir(w.agent.Host.BPFFS + "/xdp")
	w.must(err)
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "dispatch-") {
			names = append(names, e.Name())
		}
	}
	return names
}

// hits is the number of packets from an address that xdp-filter has dropped.
func (w *world) hits(address netip.Addr) (n int) {
	w.t.Helper()
	for line := range strings.Lines(w.tool("xdp-filter", "status")) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == address.String() {
			var err error
			n, err = strconv.Atoi(f[2])
			w.must(err)
			return n
		}
	}
	w.t.Fatalf("xdp-filter does not know %s", address)
	return 0
}

// wantFiltered has the filter drop packets from the client's IPv4 address, and checks that none reaches the
// edge, which serves IPv6 meanwhile.
func (w *world) wantFiltered() {
	w.t.Helper()
	own, client := addresses(w.Host("node-a"), nodePort), w.Host("client").Addr4
	conn := w.open("udp", own[0])
	w.tool("xdp-filter", "ip", "--mode", "src", client.String())
	w.must(write(conn))
	w.eventually("the filter drops", func() bool { return w.hits(client) > 0 })
	before := w.status().Edge.Counters
	for range 10 {
		w.must(write(conn))
	}
	w.eventually("the filter has dropped them", func() bool { return w.hits(client) >= 11 })
	for reason, n := range w.status().Edge.Counters {
		if n != before[reason] && reason != "not_service" {
			w.t.Errorf("the edge counts %d packets as %s, before %d: the filter should have dropped them", n, reason, before[reason])
		}
	}
	w.wantAnswered("tcp", own[1])
	w.tool("xdp-filter", "ip", "--mode", "src", "--remove", client.String())
	w.wantAnswered("tcp", own[0])
}

func write(conn net.Conn) error {
	_, err := conn.Write([]byte("hello"))
	return err
}

// X7: a filter was attached first. Beeline joins it and runs after it, so what the filter drops reaches no
// Service; Beeline stays when the filter is removed or added again, and the filter stays when Beeline is
// removed.
func TestBeelineJoinsAFilter(t *testing.T) {
	w := newShared(t)
	w.tool("xdp-filter", "load", "eth0")
	w.must(w.agent.Start())
	w.wantChain(filter + ", Beeline")
	w.wantExit(0, "eth0  xdp", "in a dispatcher: "+filter+" (program ", "then Beeline (priority 100)")
	w.apply("web", objects(w.public("b1"))...)
	w.wantServedShared()
	w.wantFiltered()
	w.tool("xdp-filter", "unload", "eth0")
	w.wantChain("Beeline")
	w.wantServedShared()
	w.tool("xdp-filter", "load", "eth0")
	w.wantChain(filter + ", Beeline")
	w.wantFiltered()
	w.must(w.agent.Stop())
	_, err := w.agent.CLI("cleanup")
	w.must(err)
	if list := w.tool("xdp-loader", "status", "eth0"); !strings.Contains(list, filter) || strings.Contains(list, "beeline") {
		t.Errorf("after cleanup eth0 has\n%s", list)
	}
	if pins := w.dispatchers(); len(pins) != 1 {
		t.Errorf("pinned are %q, want the filter's dispatcher", pins)
	}
	w.tool("xdp-filter", "unload", "eth0")
	if pins := w.dispatchers(); len(pins) != 0 {
		t.Errorf("left: %q", pins)
	}
}

// X7: Beeline was attached first, in a dispatcher because it was asked to. libxdp's tools find it there, and
// add and remove others. When all programs are removed, Beeline attaches again.
func TestAFilterJoinsBeeline(t *testing.T) {
	w := newShared(t, "--edge-xdp-dispatcher")
	w.must(w.agent.Start())
	w.wantChain("Beeline")
	w.apply("web", objects(w.public("b1"))...)
	w.wantServedShared()
	if list := w.tool("xdp-loader", "status", "eth0"); !strings.Contains(list, "xdp_dispatcher") || !strings.Contains(list, "beeline") {
		t.Errorf("xdp-loader finds no Beeline in a dispatcher:\n%s", list)
	}
	w.tool("xdp-filter", "load", "eth0")
	w.wantChain(filter + ", Beeline")
	w.wantServedShared()
	w.wantFiltered()
	w.tool("xdp-loader", "unload", "eth0", "--all")
	w.wantChain("Beeline")
	w.wantServedShared()
	w.must(w.agent.Stop())
	_, err := w.agent.CLI("cleanup")
	w.must(err)
	if list := w.tool("xdp-loader", "status", "eth0"); !strings.Contains(list, "No XDP program loaded") {
		t.Errorf("after cleanup eth0 has\n%s", list)
	}
	if pins := w.dispatchers(); len(pins) != 0 {
		t.Errorf("left: %q", pins)
	}
	if _, err := os.Stat(w.agent.BPFFS()); !os.IsNotExist(err) {
		t.Errorf("Beeline's pins remain: %v", err)
	}
}

// X7, R37: no connection is lost while a filter is added and removed, and while the agent is killed and
// replaced.
func TestSharedDeviceUnderLoad(t *testing.T) {
	w := newShared(t, "--edge-xdp-dispatcher")
	w.must(w.agent.Start())
	w.apply("web", objects(w.public("a1", "b1"))...)
	// An emulated CPU (test/kernels) needs time for the agents besides the clients.
	ended := w.load(50 * time.Millisecond)
	w.tool("xdp-filter", "load", "eth0")
	w.wantChain(filter + ", Beeline")
	own := w.programIn()
	w.must(w.agent.Kill())
	w.must(w.agent.Start())
	w.wantChain(filter + ", Beeline")
	if now := w.programIn(); now == own {
		t.Errorf("program %d of the killed agent still serves", now)
	}
	if pins := w.dispatchers(); len(pins) != 1 {
		t.Errorf("pinned are %q, want one dispatcher", pins)
	}
	w.must(w.agent.Kill())
	w.tool("xdp-filter", "unload", "eth0")
	w.must(w.agent.Start())
	w.wantChain("Beeline")
	ended()
}

// X7: without a request for a dispatcher, Beeline has the device for itself: a filter is refused there, and
// Beeline continues to serve.
func TestAFilterIsRefused(t *testing.T) {
	w := newShared(t)
	w.must(w.agent.Start())
	w.apply("web", objects(w.public("b1"))...)
	if out, err := w.try("xdp-filter", "load", "eth0"); err == nil {
		t.Errorf("the filter was loaded despite Beeline's link:\n%s", out)
	}
	if chain := w.chain(); chain != "" {
		t.Errorf("eth0 is shared by %s", chain)
	}
	w.wantMode("xdp")
	w.wantServedShared()
}

// explain describes a packet's fate in a dispatcher, too, with the programs that run before. Refusals, which
// change a packet's length, are left to tc there.
func TestExplainAtASharedDevice(t *testing.T) {
	w := newShared(t, "--edge-xdp-dispatcher")
	w.tool("xdp-filter", "load", "eth0")
	w.must(w.agent.Start())
	w.apply("web", objects(w.public("b1"))...)
	to := addresses(w.Host("node-a"), nodePort)[0]
	w.wantAnswered("tcp", to) // now the next hop is known
	text, err := w.agent.CLI("explain", "packet", w.Host("client").Addr4.String(), to.String())
	w.must(err)
	for _, word := range []string{"handled by  xdp at eth0", w.Host("b1").Addr4.String(), filter} {
		if !strings.Contains(text, word) {
			t.Errorf("no %q in\n%s", word, text)
		}
	}
	if strings.Contains(text, "another version") {
		t.Errorf("the program is taken for somebody else's:\n%s", text)
	}
	w.apply("web", objects(w.public())...)
	for _, to := range addresses(w.Host("node-a"), nodePort) {
		w.wantRefused("tcp", to)
		w.wantRefused("udp", to)
	}
	w.wantCounted("to_tc")
}
