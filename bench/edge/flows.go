// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/bench/testrun"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/conntrack"
)

// The sets of frames, each with the same number of flows.
const (
	setPlain       = "plain"       // of a client to a pod
	setPlainOut    = "plainOut"    // of a pod to a client
	setRemote      = "remote"      // of established flows to remote endpoints
	setReplies     = "replies"     // replies of these endpoints
	setLocal       = "local"       // of established flows to an endpoint of this node
	setLocalAnswer = "localAnswer" // replies of that endpoint
	setSYN         = "syn"         // first packets of unknown flows
	setDatagram    = "datagram"
)

// Frames for beginning flows, at the start of the table.
const scratchFrames = 8192

const plainPort = 5201

// frameRoom is the number of frames of a rig with so many sets of so many flows.
func frameRoom(sets, flows uint32) uint32 { return scratchFrames + sets*flows }

// client returns a unique address and port for each flow, and for each kind of flows.
func (rig *edgeRig) client(kind, n uint32) netip.AddrPort {
	const ports = 60000
	first := harness.Plus(rig.address("client"), 10+int(kind)*40)
	return netip.AddrPortFrom(harness.Plus(first, int(n/ports)), uint16(1024+n%ports))
}

// make fills the table of frames with the named sets, each with so many flows, and has the edge begin those
// that are to be established. It runs in the node's namespace.
func (rig *edgeRig) make(flows uint32, sets ...string) error {
	for _, set := range sets {
		var err error
		switch set {
		case setPlain:
			err = rig.addSet(set, true, rig.flowsOf(0, flows, netip.AddrPortFrom(rig.plain, plainPort), unix.IPPROTO_TCP, testrun.FlagACK))
		case setPlainOut:
			err = rig.addSet(set, false, testrun.Turned(rig.flowsOf(0, flows, netip.AddrPortFrom(rig.plain, plainPort), unix.IPPROTO_TCP, testrun.FlagACK)))
		case setSYN:
			err = rig.addSet(set, true, rig.flowsOf(3, flows, netip.AddrPortFrom(rig.node, remotePort), unix.IPPROTO_TCP, testrun.FlagSYN))
		case setDatagram:
			err = rig.addSet(set, true, rig.flowsOf(3, flows, netip.AddrPortFrom(rig.node, remotePort), unix.IPPROTO_UDP, 0))
		case setRemote:
			err = rig.establish(set, rig.flowsOf(1, flows, netip.AddrPortFrom(rig.node, remotePort), unix.IPPROTO_TCP, testrun.FlagACK), bpf.ConntrackReply)
		case setLocal:
			err = rig.establish(set, rig.flowsOf(2, flows, netip.AddrPortFrom(rig.node, localPort), unix.IPPROTO_TCP, testrun.FlagACK), bpf.ConntrackReply|bpf.ConntrackLocal)
		case setLocalAnswer:
			err = rig.addSet(set, false, testrun.Turned(rig.flowsOf(2, flows, netip.AddrPortFrom(rig.local, harness.ServerPort), unix.IPPROTO_TCP, testrun.FlagACK)))
		case setReplies:
			var all []testrun.Segment
			if all, err = rig.answers(rig.flows.Assured, flows, bpf.ConntrackReply, testrun.FlagACK); err == nil {
				err = rig.addSet(set, true, all)
			}
		default:
			err = rig.makeDirect(set, flows)
		}
		if err != nil {
			return fmt.Errorf("frames %q: %w", set, err)
		}
	}
	return nil
}

func (rig *edgeRig) flowsOf(kind, count uint32, to netip.AddrPort, protocol uint8, flags byte) []testrun.Segment {
	all := make([]testrun.Segment, count)
	for n := range count {
		all[n] = testrun.Segment{From: rig.client(kind, n), To: to, Protocol: protocol, Flags: flags}
	}
	return all
}

// addSet adds frames, in another order than that in which flows began: entries are in memory in the order of
// their creation.
func (rig *edgeRig) addSet(name string, incoming bool, all []testrun.Segment) error {
	if rig.used == 0 {
		rig.used = scratchFrames
	}
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	rig.sets[name] = testrun.FrameSet{First: rig.used, Count: uint32(len(all))}
	rig.used += uint32(len(all))
	return rig.write(rig.sets[name].First, incoming, all)
}

func (rig *edgeRig) write(first uint32, incoming bool, all []testrun.Segment) error {
	source, destination := rig.own, rig.gateway
	if incoming {
		source, destination = rig.gateway, rig.own
	}
	for len(all) > 0 {
		some := all[:min(len(all), scratchFrames)]
		keys, frames := make([]uint32, len(some)), make([]testrun.Frame, len(some))
		for i, s := range some {
			keys[i], frames[i] = first+uint32(i), s.Frame(source, destination)
		}
		if _, err := rig.frames.BatchUpdate(keys, frames, nil); err != nil {
			return fmt.Errorf("write %d frames: %w", len(some), err)
		}
		first, all = first+uint32(len(some)), all[len(some):]
	}
	return nil
}

// openAtOnce is how many flows may be half open at the same time. Entries are assigned to sets of the table by
// chance, and a set without a free place evicts one: with a 16th of all places in use, by two entries of each
// flow, in one table of 10^13, with a quarter in one of 36,000.
func (rig *edgeRig) openAtOnce() int {
	return max(1, min(scratchFrames, int(rig.flows.Unreplied.Max())/32))
}

// establish has clients open connections, with replies of backends of this node or of others, and adds the
// clients' ACKs as a set. The backends' entries have the given flags.
func (rig *edgeRig) establish(name string, all []testrun.Segment, kind bpf.EdgeTCCtFlag) error {
	before, err := rig.counts()
	if err != nil {
		return err
	}
	atOnce := rig.openAtOnce()
	for first := 0; first < len(all); first += atOnce {
		some := all[first:min(first+atOnce, len(all))]
		if err := rig.handshake(some, kind); err != nil {
			return err
		}
		if err := rig.record(name, uint32(len(some))); err != nil {
			return err
		}
	}
	n := uint64(len(all))
	want := map[string]uint64{"new": n, "reply": n, "established": n}
	if err := rig.counted(before, want); err != nil {
		return fmt.Errorf("beginning flows: %w", err)
	}
	return rig.addSet(name, true, all)
}

// handshake shows the programs SYN, SYN-ACK and ACK of each connection: without the second one a flow does not
// count as established.
func (rig *edgeRig) handshake(some []testrun.Segment, kind bpf.EdgeTCCtFlag) error {
	asks := func(flags byte) error {
		for i := range some {
			some[i].Flags = flags
		}
		return rig.send(hookXDP, some)
	}
	if err := asks(testrun.FlagSYN); err != nil {
		return err
	}
	answers, err := rig.answers(rig.flows.Unreplied, uint32(len(some)), kind, testrun.FlagSYN|testrun.FlagACK)
	if err != nil {
		return err
	}
	hook := hookXDP
	if kind&bpf.ConntrackLocal != 0 {
		hook = hookEgress
	}
	if err := rig.send(hook, answers); err != nil {
		return err
	}
	return asks(testrun.FlagACK)
}

// record shows the yardstick with records the latest segments, if it is measured with their set. Its records
// are then in memory in the order in which flows began, like Beeline's entries. If timed packets created them,
// they would be in the order of the frames (addSet), and the CPU would prefetch each for its packet.
func (rig *edgeRig) record(name string, count uint32) error {
	if name != setRemote || !rig.recordsAt(hookXDP) {
		return nil
	}
	_, _, _, err := rig.drivers[hookXDP].run(targetRecords, testrun.FrameSet{Count: count, Resized: true}, 0, count)
	return err
}

// send shows the edge's program at a hook each segment once.
func (rig *edgeRig) send(hook string, all []testrun.Segment) error {
	if err := rig.write(0, hook != hookEgress, all); err != nil {
		return err
	}
	count := uint32(len(all))
	_, _, _, err := rig.drivers[hook].run(targetEdge, testrun.FrameSet{Count: count, Resized: hook == hookXDP}, 0, count)
	return err
}

// lost is how many flows may find no room: in tables filled as here about four of a million find both of their sets
// full. Others are used twice instead.
func lost(flows uint64) uint64 { return 2 + flows/10_000 }

// answers are the backends' replies by their entries, which have the given flags.
func (rig *edgeRig) answers(table conntrack.Table, want uint32, kind bpf.EdgeTCCtFlag, flags byte) (all []testrun.Segment, err error) {
	err = table.Walk(func(key bpf.Tuple, t *bpf.ConntrackEntry) bool {
		if t.Flags&^uint8(bpf.ConntrackFIN) == uint8(kind) {
			all = append(all, segmentOf(key, flags))
		}
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("read the entries of flows: %w", err)
	}
	missing := int(want) - len(all)
	if missing < 0 || missing > int(lost(uint64(want))) {
		return nil, fmt.Errorf("%d flows have an entry for replies, want %d", len(all), want)
	}
	return append(all, all[:missing]...), nil
}

func segmentOf(key bpf.Tuple, flags byte) testrun.Segment {
	return testrun.Segment{From: endOf(key.Source.Bytes, key.SourcePort), To: endOf(key.Destination.Bytes, key.DestinationPort),
		Protocol: key.Protocol, Flags: flags}
}

func endOf(address [16]byte, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(address).Unmap(), bpf.NetworkOrder(port))
}

// forget removes the entries of flows with packets of only one side.
func (rig *edgeRig) forget() error {
	var failed error
	err := rig.flows.Unreplied.Walk(func(key bpf.Tuple, _ *bpf.ConntrackEntry) bool {
		_, failed = rig.flows.Unreplied.Delete(key)
		return failed == nil
	})
	if err = errors.Join(err, failed); err != nil {
		return fmt.Errorf("remove entries: %w", err)
	}
	return nil
}

func (rig *edgeRig) counts() (map[string]uint64, error) { return bpf.ReadEdgeCounters(rig.bpffs) }

// strangers is how many of the kernel's own packets, none of which belong to Services, may pass the devices
// meanwhile.
const strangers = 1000

// counted checks the number of packets that the edge has handled, by reason, except for flows without a free
// place.
func (rig *edgeRig) counted(before, want map[string]uint64) error {
	after, err := rig.counts()
	if err != nil {
		return err
	}
	var all uint64
	for _, n := range want {
		all += n
	}
	for reason, n := range after {
		n -= before[reason]
		if max(n, want[reason])-min(n, want[reason]) > lost(all) && !(reason == "not_service" && n > want[reason] && n <= want[reason]+strangers) {
			return fmt.Errorf("the edge counted %q %d times, want %d", reason, n, want[reason])
		}
	}
	return nil
}
