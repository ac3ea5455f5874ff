// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"fmt"
	"net/netip"
	"slices"

	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/bench/testrun"
	"beeline.io/beeline/internal/bpf"
)

// An edgeCase is packets of one kind at the edge.
type edgeCase struct {
	name   string
	hooks  []string
	set    string
	reason string // counted for each
	sent   bool   // back to its sender's device; else it passes
	hops   byte   // by which its hop limit decreases
	// becomes reports whether the packet was translated correctly.
	becomes func(rig *edgeRig, before, after testrun.Segment) bool
	fresh   bool // each packet begins a flow
	many    bool // also measured with the most flows
	// recorded: a yardstick with a record per flow is measured as well, at XDP with IPv4.
	recorded bool

	direct   string   // kind of DSR with which it is sent
	wrapped  bool     // it arrives with DSR
	families []string // none: both
}

var ingressHooks = []string{hookXDP, hookIngress}

var edgeCases = []edgeCase{
	{name: "not ours", hooks: ingressHooks, set: setPlain, reason: "not_service", becomes: unchanged, many: true},
	{name: "established, remote backend", hooks: ingressHooks, set: setRemote, reason: "established", sent: true, hops: 1, becomes: toEndpoint, many: true, recorded: true},
	{name: "reply, remote backend", hooks: ingressHooks, set: setReplies, reason: "reply", sent: true, hops: 1, becomes: fromService(remotePort), many: true},
	{name: "established, local backend", hooks: ingressHooks, set: setLocal, reason: "established", becomes: toLocal},
	{name: "reply, local backend", hooks: []string{hookEgress}, set: setLocalAnswer, reason: "reply", becomes: fromService(localPort)},
	{name: "not ours", hooks: []string{hookEgress}, set: setPlainOut, reason: "not_service", becomes: unchanged, many: true},
	{name: "new, TCP", hooks: ingressHooks, set: setSYN, reason: "new", sent: true, hops: 1, becomes: toEndpoint, fresh: true, many: true},
	{name: "new, UDP", hooks: ingressHooks, set: setDatagram, reason: "new", sent: true, hops: 1, becomes: toEndpoint, fresh: true},
}

func unchanged(_ *edgeRig, before, after testrun.Segment) bool { return before == after }

func toEndpoint(rig *edgeRig, _, after testrun.Segment) bool {
	return after.From.Addr() == rig.node && after.To.Port() == harness.ServerPort && slices.Contains(rig.endpoints, after.To.Addr())
}

func toLocal(rig *edgeRig, before, after testrun.Segment) bool {
	return after.From == before.From && after.To == netip.AddrPortFrom(rig.local, harness.ServerPort)
}

func fromService(port uint16) func(*edgeRig, testrun.Segment, testrun.Segment) bool {
	return func(rig *edgeRig, _, after testrun.Segment) bool {
		first := rig.client(0, 0).Addr()
		return after.From == netip.AddrPortFrom(rig.node, port) && !after.To.Addr().Less(first) && after.To.Addr().Less(harness.Plus(first, 200))
	}
}

// The verdicts of the hooks for a packet that passes, and for one that is sent back.
var verdicts = map[string][2]uint32{
	hookXDP:     {2, 3},          // XDP_PASS, XDP_TX
	hookIngress: {0xffffffff, 7}, // TC_ACT_UNSPEC, TC_ACT_REDIRECT
	hookEgress:  {0xffffffff, 7},
	hookTC:      {0xffffffff, 7},
}

// runOne runs a program on one frame of a set, which must be sent or passed. It returns the packet before and
// after.
func (rig *edgeRig) runOne(hook string, t target, set testrun.FrameSet, at uint32, sent bool) (before testrun.Segment, hops byte, out []byte, err error) {
	var in testrun.Frame
	if err := rig.frames.Lookup(set.First+at, &in); err != nil {
		return before, 0, nil, err
	}
	if before, hops, err = testrun.ParseFrame(in[:]); err != nil {
		return before, 0, nil, err
	}
	verdict, out, _, err := rig.drivers[hook].run(t, set, at, 1)
	if err != nil {
		return before, 0, nil, fmt.Errorf("%s: %w", before, err)
	}
	want := verdicts[hook][0]
	if sent {
		want = verdicts[hook][1]
	}
	if verdict != want {
		return before, 0, nil, fmt.Errorf("%s: the program returned %#x, want %#x", before, verdict, want)
	}
	return before, hops, out, nil
}

// proveOne runs a program on one frame of a set, and checks the result.
func (rig *edgeRig) proveOne(hook string, t target, set testrun.FrameSet, at uint32, sent bool, hops byte, becomes func(*edgeRig, testrun.Segment, testrun.Segment) bool) error {
	before, hopsBefore, out, err := rig.runOne(hook, t, set, at, sent)
	if err != nil {
		return err
	}
	after, hopsAfter, err := testrun.ParseFrame(out)
	if err != nil {
		return fmt.Errorf("%s became %w", before, err)
	}
	if !becomes(rig, before, after) || hopsAfter != hopsBefore-hops || after.Flags != before.Flags {
		return fmt.Errorf("%s became %s with %d hops left", before, after, hopsAfter)
	}
	return nil
}

// proveDirect is the same for a packet that is sent with DSR.
func (rig *edgeRig) proveDirect(hook string, c edgeCase, set testrun.FrameSet, at uint32) error {
	before, hopsBefore, out, err := rig.runOne(hook, targetEdge, set, at, true)
	if err != nil {
		return err
	}
	after, hopsAfter, j, err := testrun.ParseDirect(c.direct, out)
	if err != nil {
		return fmt.Errorf("%s became %w", before, err)
	}
	if !rig.arrived(c.direct, before, after, j) || hopsAfter != hopsBefore-1 {
		return fmt.Errorf("%s became %s with %d hops left, from %s to %s for %s", before, after, hopsAfter, j.From, j.To, j.Named)
	}
	return nil
}

// prove checks packets of a case before they are timed, at both ends of the set and in its middle, at the edge
// and at the yardstick.
func (rig *edgeRig) prove(hook string, c edgeCase, set, yard testrun.FrameSet) error {
	for _, at := range []uint32{0, set.Count / 2, set.Count - 1} {
		prove := func() error { return rig.proveOne(hook, targetEdge, set, at, c.sent, c.hops, c.becomes) }
		if c.direct != "" {
			prove = func() error { return rig.proveDirect(hook, c, set, at) }
		}
		if err := prove(); err != nil {
			return fmt.Errorf("edge: %w", err)
		}
	}
	becomes, hops := unchanged, byte(0)
	if c.translated() {
		hops = 1
		becomes = func(rig *edgeRig, before, after testrun.Segment) bool {
			return before.From == after.From && after.To.Port() == harness.ServerPort && slices.Contains(rig.endpoints, after.To.Addr())
		}
	}
	if err := rig.proveOne(hook, targetMinimal, yard, 0, c.translated(), hops, becomes); err != nil {
		return fmt.Errorf("yardstick: %w", err)
	}
	if rig.records(hook, c) {
		if err := rig.proveRecorded(yard); err != nil {
			return err
		}
		if err := rig.proveOne(hook, targetRecords, yard, 0, true, hops, becomes); err != nil {
			return fmt.Errorf("yardstick with records: %w", err)
		}
	}
	return nil
}

// records reports whether the yardstick with records is measured for a case.
func (rig *edgeRig) records(hook string, c edgeCase) bool {
	return c.recorded && rig.recordsAt(hook)
}

// recordsAt reports whether the yardstick with records runs at a hook.
func (rig *edgeRig) recordsAt(hook string) bool { return hook == hookXDP && rig.family == "IPv4" }

// A minimalFlow is the key of a record (struct minimal_flow in bench/bpf/records.h). Ports are in network byte
// order.
type minimalFlow struct {
	source, destination         [16]byte
	sourcePort, destinationPort uint16
	protocol                    uint32
}

// proveRecorded checks that the yardstick has records of a set's flows before packets of the set are timed: of
// those at both ends and in the middle.
func (rig *edgeRig) proveRecorded(set testrun.FrameSet) error {
	records := rig.drivers[hookXDP].collection.Maps[testrun.CostXDPMapMinimalRecords]
	record := make([]byte, records.ValueSize())
	for _, at := range []uint32{0, set.Count / 2, set.Count - 1} {
		var in testrun.Frame
		if err := rig.frames.Lookup(set.First+at, &in); err != nil {
			return err
		}
		s, _, err := testrun.ParseFrame(in[:])
		if err != nil {
			return err
		}
		key := minimalFlow{source: s.From.Addr().As16(), destination: s.To.Addr().As16(), sourcePort: bpf.NetworkOrder(s.From.Port()),
			destinationPort: bpf.NetworkOrder(s.To.Port()), protocol: uint32(s.Protocol)}
		if err := records.Lookup(&key, &record); err != nil {
			return fmt.Errorf("yardstick with records: the record of %s: %w", s, err)
		}
	}
	return nil
}

// translated reports whether the packet gets another tuple.
func (c edgeCase) translated() bool { return c.reason != "not_service" }
