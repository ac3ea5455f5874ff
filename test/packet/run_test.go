// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/conntrack"
	"beeline.io/beeline/test/packet/model"
)

// hook is where the edge handles a packet.
type hook string

const (
	atXDP     hook = "xdp"
	atIngress hook = "tc ingress"
	atEgress  hook = "tc egress"
)

// What the hooks return.
const (
	xdpDrop, xdpPass, xdpTX      = 1, 2, 3
	tcUnspec, tcShot, tcRedirect = 0xffffffff, 2, 7
)

var actions = map[hook]map[uint32]model.Action{
	atXDP:     {xdpDrop: model.ActionDrop, xdpPass: model.ActionPass, xdpTX: model.ActionSend},
	atIngress: {tcShot: model.ActionDrop, tcUnspec: model.ActionPass, tcRedirect: model.ActionSend},
	atEgress:  {tcShot: model.ActionDrop, tcUnspec: model.ActionPass, tcRedirect: model.ActionSend},
}

// The longest frame of the tests, with room for a longer reply.
var output = make([]byte, 1<<14)

// run has eth0 receive a frame, or send it. The result's frame is valid until the next run.
func (w *world) run(t testing.TB, at hook, frame []byte) model.Result {
	t.Helper()
	return w.runWith(t, at, frame, 0, 0)
}

// bpfTestChecksumComplete is BPF_F_TEST_SKB_CHECKSUM_COMPLETE (Linux 6.17): the device has computed the
// packet's sum, and the kernel verifies it afterwards.
const bpfTestChecksumComplete = 1 << 2

// runWith is run with flags, and for a packet that GRO merged from segments of a size.
func (w *world) runWith(t testing.TB, at hook, frame []byte, flags, segment uint32) model.Result {
	t.Helper()
	var program *ebpf.Program
	if w.l3 {
		return w.runL3(t, at, frame)
	}
	options := ebpf.RunOptions{Data: frame, DataOut: output, Flags: flags}
	if at == atXDP {
		program = w.xdp
		// struct xdp_md: data_end, ingress_ifindex.
		options.Context = [6]uint32{1: uint32(len(frame)), 3: w.index["eth0"]}
	} else {
		program = w.ingress
		if at == atEgress {
			program = w.egress
		}
		// struct __sk_buff: ifindex, gso_size.
		options.Context = [48]uint32{10: w.index["eth0"], 44: segment}
	}
	verdict, err := program.Run(&options)
	if err != nil {
		t.Fatalf("%s: running the program on %d bytes: %v", at, len(frame), err)
	}
	action, ok := actions[at][verdict]
	if !ok {
		t.Fatalf("%s: the program returned %#x", at, verdict)
	}
	if action == model.ActionDrop {
		return model.Result{Action: action}
	}
	return model.Result{Action: action, Frame: options.DataOut}
}

// met reports whether a result is as it should be. After tc the kernel writes the MAC addresses of a packet
// that is sent; the program does so if the next hop is cached, and then they may be those of a device and its
// neighbour (TestNextHopIsRemembered compares them exactly).
func (w *world) met(at hook, got, want model.Result) bool {
	if got.Action != want.Action {
		return false
	}
	got.Frame, want.Frame = withoutID(got.Frame), withoutID(want.Frame)
	if w.l3 && got.Action == model.ActionSend && min(len(got.Frame), len(want.Frame)) > ethernetHeader {
		return bytes.Equal(got.Frame[ethernetHeader:], want.Frame[ethernetHeader:]) // runL3 checks the header
	}
	if at != atIngress || got.Action != model.ActionSend || len(got.Frame) != len(want.Frame) || len(got.Frame) < 14 {
		return bytes.Equal(got.Frame, want.Frame)
	}
	return bytes.Equal(got.Frame[12:], want.Frame[12:]) && (bytes.Equal(got.Frame[:12], want.Frame[:12]) || w.nextHop(got.Frame))
}

// sent reports the same of a frame that tc has sent.
func (w *world) sent(got, want []byte) bool {
	return w.met(atIngress, model.Result{Action: model.ActionSend, Frame: got}, model.Result{Action: model.ActionSend, Frame: want})
}

// nextHop reports whether a frame leaves a device of the node for one of its neighbours.
func (w *world) nextHop(frame []byte) bool {
	for _, d := range devices {
		if w.mac[d.name] == [6]byte(frame[6:]) && slices.Contains(slices.Collect(maps.Values(d.neighbour)), [6]byte(frame)) {
			return true
		}
	}
	return false
}

// counts is the number of packets by reason.
func (w *world) counts(t testing.TB) (counts [model.Reasons]uint64) {
	t.Helper()
	var each []bpf.EdgeTCEdgeCounters
	must(t, w.maps[bpf.EdgeTCMapEdgeCounts].Lookup(uint32(0), &each))
	for _, cpu := range each {
		for reason, n := range cpu.Count {
			counts[reason] += n
		}
	}
	return counts
}

// now is the programs' clock in seconds.
func now(t testing.TB) (seconds uint32, nanoseconds int64) {
	t.Helper()
	var ts unix.Timespec
	must(t, unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &ts))
	return uint32(ts.Sec), ts.Nsec
}

func kernelTuple(t model.Tuple) (k bpf.EdgeTCTuple) {
	k.Source.Bytes, k.Destination.Bytes = t.Source.As16(), t.Destination.As16()
	k.SourcePort, k.DestinationPort = bpf.NetworkOrder(t.SourcePort), bpf.NetworkOrder(t.DestinationPort)
	k.Protocol = t.Protocol
	return k
}

func modelTuple(k bpf.EdgeTCTuple) model.Tuple {
	return model.Tuple{
		Source:          netip.AddrFrom16(k.Source.Bytes).Unmap(),
		Destination:     netip.AddrFrom16(k.Destination.Bytes).Unmap(),
		SourcePort:      bpf.NetworkOrder(k.SourcePort),
		DestinationPort: bpf.NetworkOrder(k.DestinationPort),
		Protocol:        k.Protocol,
	}
}

func modelTrack(k bpf.EdgeTCCtEntry) model.Track {
	return model.Track{
		Becomes: modelTuple(k.Xlate), Service: k.Lb.Service, Backend: k.Lb.Backend, LastSeen: k.LastSeen, Device: k.Device,
		State: model.State(k.State), Reply: k.Flags&1 != 0, Local: k.Flags&2 != 0, Fin: k.Flags&4 != 0, FromBalancer: k.Flags&16 != 0, Later: k.Flags&32 != 0,
		PortTaken: k.Flags&128 != 0,
		DSR:       model.DSR(k.Dsr), Acked: k.Acked, Next: k.Next, Packets: k.Packets, Bytes: k.Bytes,
	}
}

// records are the entries of a conntrack table: tracks, or halfOpen.
func (w *world) records(t testing.TB, table string) map[model.Tuple]model.Track {
	t.Helper()
	all := map[model.Tuple]model.Track{}
	must(t, w.flowTable(table).Walk(func(key bpf.Tuple, value *bpf.ConntrackEntry) bool {
		tuple := modelTuple(key)
		if want := model.Hash(tuple); value.Tag != want {
			t.Errorf("table %s, %v: tag %#x, want %#x", table, tuple, value.Tag, want)
		}
		all[tuple] = modelTrack(*value)
		return true
	}))
	return all
}

// flowTable is a conntrack table by its name.
func (w *world) flowTable(name string) conntrack.Table {
	flows := conntrack.TablesOf(w.maps)
	if name == halfOpen {
		return flows.Unreplied
	}
	return flows.Assured
}

// lose removes an entry, which must exist.
func (w *world) lose(t testing.TB, table string, key model.Tuple) bool {
	t.Helper()
	existed, err := w.flowTable(table).Delete(kernelTuple(key))
	must(t, err)
	if !existed {
		t.Fatalf("table %s has no entry of %v", table, key)
	}
	return true
}

// affinity is the clients' last backends.
func (w *world) affinity(t testing.TB) map[model.AffinityKey]model.Affinity {
	t.Helper()
	all := map[model.AffinityKey]model.Affinity{}
	must(t, bpf.AffinityOf(w.maps).Walk(func(e *bpf.AffinityEntry) bool {
		client := netip.AddrFrom16(e.Key.Client.Bytes).Unmap()
		all[model.AffinityKey{Client: client, Service: e.Key.Service}] = model.Affinity{Backend: e.Backend, LastUsed: e.LastUsed}
		return true
	}))
	return all
}

// emptyAffinity removes all affinity entries.
func (w *world) emptyAffinity(t testing.TB) {
	t.Helper()
	table := bpf.AffinityOf(w.maps)
	must(t, table.Walk(func(e *bpf.AffinityEntry) bool { must(t, table.Delete(e.Key)); return true }))
}

// fragments are the stored ports of datagrams in fragments.
func (w *world) fragments(t testing.TB) map[model.FragmentKey]model.Fragment {
	t.Helper()
	all := map[model.FragmentKey]model.Fragment{}
	var key struct {
		Source, Destination [16]byte
		ID                  [4]byte
		Protocol            uint8
		_                   [3]byte
	}
	var value struct {
		Ports   [4]byte
		Since   uint32
		Missing int32
	}
	entries := w.maps[bpf.EdgeTCMapFragments].Iterate()
	for entries.Next(&key, &value) {
		k := model.FragmentKey{Source: netip.AddrFrom16(key.Source).Unmap(), Destination: netip.AddrFrom16(key.Destination).Unmap(),
			ID: binary.BigEndian.Uint32(key.ID[:]), Protocol: key.Protocol}
		if k.Source.Is4() { // two bytes, in network byte order
			k.ID >>= 16
		}
		all[k] = model.Fragment{Source: binary.BigEndian.Uint16(value.Ports[:]), Destination: binary.BigEndian.Uint16(value.Ports[2:]), Since: value.Since,
			Missing: value.Missing}
	}
	must(t, entries.Err())
	return all
}
