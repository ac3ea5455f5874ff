// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/bench/result"
	"beeline.io/beeline/bench/testrun"
	"beeline.io/beeline/test/needs"
)

// loadPeer loads the yardstick as a peer, with a Service of its own.
func loadPeer(t *testing.T, load func() (*ebpf.CollectionSpec, error), flags uint32, asked netip.AddrPort) *ebpf.Program {
	t.Helper()
	spec, err := load()
	if err != nil {
		t.Fatal(err)
	}
	for _, program := range spec.Programs {
		program.Flags = flags
	}
	collection, err := ebpf.NewCollection(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(collection.Close)
	endpoints := []netip.Addr{harness.Plus(asked.Addr(), 7)}
	if err := testrun.FillMinimal(collection.Maps, asked, unix.IPPROTO_TCP, endpoints...); err != nil {
		t.Fatal(err)
	}
	return collection.Programs[testrun.CostXDPProgCostMinimal]
}

// loadXDP loads a program of a few instructions.
func loadXDP(t *testing.T, kind ebpf.ProgramType, instructions ...asm.Instruction) *ebpf.Program {
	t.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "peer", Type: kind, License: "Dual BSD/GPL", Instructions: instructions})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	return program
}

func idOf(t *testing.T, program *ebpf.Program) ebpf.ProgramID {
	t.Helper()
	info, err := program.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	return id
}

func writePacket(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "packet")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func peerPacket(asked netip.AddrPort, more int) []byte {
	from := netip.MustParseAddrPort("198.51.100.9:65534")
	if asked.Addr().Is6() {
		from = netip.MustParseAddrPort("[2001:db8:9::9]:65534")
	}
	f := testrun.Segment{From: from, To: asked, Protocol: unix.IPPROTO_TCP, Flags: testrun.FlagSYN}.Frame([6]byte{2, 1}, [6]byte{2, 2})
	return append(f[:], make([]byte, more)...)
}

// A peer is timed with the yardstick and all its flows, whatever its kind, and whatever it does to a packet's
// length; its verdict is shown.
func TestPeers(t *testing.T) {
	needs.Root(t)
	four, six := netip.MustParseAddrPort("192.0.2.80:80"), netip.MustParseAddrPort("[2001:db8::80]:80")
	for _, c := range []struct {
		what     string
		program  *ebpf.Program
		packet   []byte
		scenario string
		family   string
	}{
		{"XDP", loadPeer(t, testrun.LoadCostXDP, 0, four), peerPacket(four, 0), "peer, XDP_TX", "IPv4"},
		{"XDP, for multi-buffer packets", loadPeer(t, testrun.LoadCostXDP, unix.BPF_F_XDP_HAS_FRAGS, six), peerPacket(six, 0), "peer, XDP_TX", "IPv6"},
		{"XDP, another Service", loadPeer(t, testrun.LoadCostXDP, 0, four), peerPacket(netip.MustParseAddrPort("192.0.2.81:80"), 700), "peer, XDP_PASS", "IPv4"},
		{"tc", loadPeer(t, testrun.LoadCostTC, 0, four), peerPacket(four, 900), "peer, TC_ACT_REDIRECT", "IPv4"},
		{"XDP, 20 bytes more", loadXDP(t, ebpf.XDP, asm.Mov.Imm(asm.R2, -20), asm.FnXdpAdjustHead.Call(), asm.Mov.Imm(asm.R0, 3), asm.Return()),
			peerPacket(four, 100), "peer, XDP_TX", "IPv4"},
		{"tc, 20 bytes less", loadXDP(t, ebpf.SchedCLS, asm.Mov.Imm(asm.R2, 100), asm.Mov.Imm(asm.R3, 0), asm.FnSkbChangeTail.Call(), asm.Mov.Imm(asm.R0, 2), asm.Return()),
			peerPacket(four, 40), "peer, TC_ACT_SHOT", "IPv4"},
	} {
		t.Run(c.what, func(t *testing.T) {
			file := writePacket(t, hex.EncodeToString(c.packet[:9])+"\n "+hex.EncodeToString(c.packet[9:])+"\n")
			peers, err := OpenPeers([]string{fmt.Sprintf("peer=%d,packet=%s", idOf(t, c.program), file)})
			if err != nil {
				t.Fatal(err)
			}
			defer ClosePeers(peers)
			b := &harness.Bench{Settings: harness.Settings{Runs: 2, Smoke: true}, Report: harness.Report{Results: &result.File{}}}
			if b.One, b.Two, err = harness.ChooseCPUs(); err != nil {
				t.Fatal(err)
			}
			if err := runPeers(t.Context(), b, peers); err != nil {
				t.Fatal(err)
			}
			for _, flows := range []int{1, 100} {
				series := result.Series{Part: PartName, Scenario: c.scenario, Hook: peers[0].hook, Side: "peer", Family: c.family, Parameters: result.Parameters{"flows": flows}}
				own := b.Results.Samples(series, metricPacket)
				series.Side = sideMinimal
				if minimal := b.Results.Samples(series, metricPacket); len(own) != 2 || len(minimal) != 2 {
					t.Errorf("%d flows: %v and %v; the rows are %+v", flows, own, minimal, b.Results.Rows)
				}
			}
		})
	}
}

// Peers that cannot be timed are refused before the measurement, with what to change.
func TestPeerErrors(t *testing.T) {
	needs.Root(t)
	four := netip.MustParseAddrPort("192.0.2.80:80")
	good := writePacket(t, string(peerPacket(four, 0)))
	xdp := idOf(t, loadPeer(t, testrun.LoadCostXDP, 0, four))
	filter := idOf(t, loadXDP(t, ebpf.SocketFilter, asm.Mov.Imm(asm.R0, 0), asm.Return()))
	for _, c := range []struct{ flag, want string }{
		{"katran", "want name=ID,packet=FILE"},
		{"katran=12", "want name=ID,packet=FILE"},
		{"katran=12,frame=x", "want name=ID,packet=FILE"},
		{"katran=x,packet=" + good, `"x" is no ID`},
		{"katran=0,packet=" + good, `"0" is no ID`},
		{fmt.Sprintf("minimal=%d,packet=%s", xdp, good), "another name"},
		{"katran=4294967295,packet=" + good, "no program with ID 4294967295 is loaded"},
		{fmt.Sprintf("katran=%d,packet=%s", filter, good), "is of type SocketFilter: this part has packets only for XDP and tc"},
		{fmt.Sprintf("katran=%d,packet=%s", xdp, good+"x"), "no such file"},
		{fmt.Sprintf("katran=%d,packet=%s", xdp, writePacket(t, "0102")), "has 2 bytes"},
		{fmt.Sprintf("katran=%d,packet=%s", xdp, writePacket(t, strings.Repeat("x", 80))), "no packet of IPv4 or IPv6"},
		{fmt.Sprintf("katran=%d,packet=%s", xdp, writePacket(t, strings.Repeat("x", 1515))), "has 1515 bytes"},
	} {
		peers, err := OpenPeers([]string{c.flag})
		ClosePeers(peers)
		if err == nil || !strings.Contains(err.Error(), "--peer "+c.flag) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want the flag and %q", err, c.want)
		}
	}
	one := fmt.Sprintf("katran=%d,packet=%s", xdp, good)
	if peers, err := OpenPeers([]string{one, one}); err == nil || peers != nil || !strings.Contains(err.Error(), "another peer") {
		t.Errorf("two of one name: %v, %v", peers, err)
	}
}

// Flows are packets with different sources and correct checksums; a packet that cannot be varied is refused.
func TestPeerFlows(t *testing.T) {
	for _, asked := range []string{"192.0.2.80:80", "[2001:db8::80]:443"} {
		template, err := parseTemplate(peerPacket(netip.MustParseAddrPort(asked), 0))
		if err != nil {
			t.Fatal(err)
		}
		seen := map[netip.AddrPort]bool{}
		const flows = 70_000 // more than the number of ports
		for n := range uint32(flows) {
			packet := template.flow(n)
			s, _, err := testrun.ParseFrame(packet)
			if err != nil {
				t.Fatalf("flow %d: %v", n, err)
			}
			if s.To != template.asked || s.Flags != testrun.FlagSYN || s.From.Port() < firstFlowPort {
				t.Fatalf("flow %d is %s", n, s)
			}
			seen[s.From] = true
		}
		if len(seen) != flows || !seen[template.source] {
			t.Errorf("%d flows have %d sources", flows, len(seen))
		}
	}
	// A port below those of flows is used only by the first; a packet without a checksum stays without.
	udp := testrun.Segment{From: netip.MustParseAddrPort("198.51.100.9:53"), To: netip.MustParseAddrPort("192.0.2.80:53"), Protocol: unix.IPPROTO_UDP}.Frame([6]byte{}, [6]byte{})
	udp[testrun.EthernetLength+26], udp[testrun.EthernetLength+27] = 0, 0
	template, err := parseTemplate(udp[:])
	if err != nil {
		t.Fatal(err)
	}
	for n := range uint32(3) {
		if f := template.flow(n); f[testrun.EthernetLength+26] != 0 || f[testrun.EthernetLength+27] != 0 {
			t.Errorf("flow %d has got a checksum", n)
		}
	}
	for what, change := range map[string]func(f []byte){
		"neither IPv4 nor IPv6":   func(f []byte) { f[12], f[13] = 0x08, 0x06 },
		"a tag":                   func(f []byte) { f[12], f[13] = 0x81, 0x00 },
		"ICMP":                    func(f []byte) { f[testrun.EthernetLength+9] = 1 },
		"a fragment":              func(f []byte) { f[testrun.EthernetLength+6] = 0x20 },
		"a header of no length":   func(f []byte) { f[testrun.EthernetLength] = 0x41 },
		"another version's bytes": func(f []byte) { f[testrun.EthernetLength] = 0x65 },
	} {
		packet := peerPacket(netip.MustParseAddrPort("192.0.2.80:80"), 0)
		change(packet)
		if _, err := parseTemplate(packet); err == nil {
			t.Errorf("%s is taken for a packet with ports", what)
		}
	}
	if _, err := parseTemplate(peerPacket(netip.MustParseAddrPort("192.0.2.80:80"), 0)[:40]); err == nil {
		t.Error("half of a header is accepted")
	}
}
