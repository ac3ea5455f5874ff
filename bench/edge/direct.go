// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/bench/testrun"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/test/node"
)

// The sets of frames of clients whose backends reply to them directly (DSR).
const (
	setUntracked = "untracked" // of flows without conntrack entries
	setGeneve    = "geneve"
	setOption    = "option"
	setTracked   = "tracked"   // of flows with entries
	setOpening   = "opening"   // first packets of flows that all get entries
	setContested = "contested" // of those flows as in setUntracked that have entries
	setWrapped   = "wrapped"   // of flows from a balancer
)

// The Services with DSR, by the number of their address. The remote one is for setUntracked and the yardstick,
// and the local one for setWrapped.
const (
	publishedLocal = 1 + iota
	publishedRemote
	publishedTracked
	publishedContested
	publishedGeneve
	publishedOption
)

// published is the address of a Service with DSR.
func (rig *edgeRig) published(number int) netip.AddrPort {
	first := netip.MustParseAddr("192.0.2.0")
	if rig.node.Is6() {
		first = netip.MustParseAddr("2001:db8:2::")
	}
	return netip.AddrPortFrom(harness.Plus(first, number), harness.ServicePort)
}

// The contested Service has these endpoints first, and all others later: then about half of the slots of its
// table have another backend.
const endpointsAtFirst = remoteEndpoints / 2

var (
	onlyIPv4    = []string{"IPv4"}
	onlyIPv6    = []string{"IPv6"}
	directCases = []edgeCase{
		{name: "DSR, IPIP, untracked", hooks: ingressHooks, set: setUntracked, reason: "untracked", direct: testrun.DSRIPIP, many: true},
		{name: "DSR, IPIP, contested", hooks: ingressHooks, set: setContested, reason: "established", direct: testrun.DSRIPIP, families: onlyIPv4},
		{name: "DSR, IPIP, always tracked", hooks: ingressHooks, set: setTracked, reason: "established", direct: testrun.DSRIPIP, many: true},
		{name: "DSR, IPIP, always tracked, new", hooks: ingressHooks, set: setOpening, reason: "new", direct: testrun.DSRIPIP, fresh: true, families: onlyIPv4},
		{name: "DSR, Geneve, untracked", hooks: ingressHooks, set: setGeneve, reason: "untracked", direct: testrun.DSRGeneve, families: onlyIPv4},
		{name: "DSR, option, untracked", hooks: ingressHooks, set: setOption, reason: "untracked", direct: testrun.DSROpt, families: onlyIPv4},
		{name: "DSR, backend's node, IPIP", hooks: ingressHooks, set: setWrapped, reason: "established", becomes: toUnwrapped, wrapped: true, families: onlyIPv4},
	}
)

func toUnwrapped(rig *edgeRig, before, after testrun.Segment) bool {
	before.Outer, before.To = after.Outer, netip.AddrPortFrom(rig.local, harness.ServerPort)
	return !after.Outer[0].IsValid() && after == before
}

// resized reports whether the program changes the packets' length.
func (c edgeCase) resized() bool { return c.direct != "" || c.wrapped }

// addDirect adds the Services with DSR; with `later`, the contested one has all endpoints.
func (rig *edgeRig) addDirect(later bool) error {
	services := []struct {
		name      string
		number    int
		kind      string
		algorithm string
		endpoints int
	}{
		{"remote", publishedRemote, testrun.DSRIPIP, "maglev", remoteEndpoints},
		{"tracked", publishedTracked, testrun.DSRIPIP, "random", remoteEndpoints},
		{"contested", publishedContested, testrun.DSRIPIP, "maglev", endpointsAtFirst},
		{"geneve", publishedGeneve, testrun.DSRGeneve, "maglev", remoteEndpoints},
		{"option", publishedOption, testrun.DSROpt, "maglev", remoteEndpoints},
	}
	publish := func(number int, kind, algorithm string) func(*corev1.Service) {
		return func(s *corev1.Service) {
			s.Annotations = map[string]string{service.AnnotationDSR: kind, service.AnnotationAlgorithm: algorithm}
			s.Spec.ExternalIPs = []string{rig.published(number).Addr().String()}
		}
	}
	for _, s := range services {
		if later {
			s.endpoints = remoteEndpoints
		}
		if err := rig.addService(s.name, uint8(s.number), publish(s.number, s.kind, s.algorithm), "node-b", rig.endpoints[:s.endpoints]...); err != nil {
			return err
		}
	}
	return rig.addService("local", publishedLocal, publish(publishedLocal, testrun.DSRIPIP, "maglev"), "node-a", rig.local)
}

// settle waits until an agent's Services are untracked, and changes the backends of about half of the contested
// one's slots.
func (rig *edgeRig) settle(ctx context.Context, agent *node.Agent) error {
	tables, err := harness.AwaitUntracked(ctx, agent)
	if err != nil {
		return err
	}
	if err := errors.Join(agent.Stop(), rig.addDirect(true), agent.Start()); err != nil {
		return err
	}
	if _, contested, err := harness.UntrackedServices(tables); err != nil || contested != 1 {
		return errors.Join(err, fmt.Errorf("%d untracked Services are contested, want 1", contested))
	}
	return nil
}

// makeDirect is make for the sets above.
func (rig *edgeRig) makeDirect(set string, flows uint32) error {
	switch set {
	case setUntracked:
		return rig.addSet(set, true, rig.flowsOf(0, flows, rig.published(publishedRemote), unix.IPPROTO_TCP, testrun.FlagACK))
	case setGeneve:
		return rig.addSet(set, true, rig.flowsOf(4, flows, rig.published(publishedGeneve), unix.IPPROTO_TCP, testrun.FlagACK))
	case setOption:
		return rig.addSet(set, true, rig.flowsOf(5, flows, rig.published(publishedOption), unix.IPPROTO_TCP, testrun.FlagACK))
	case setTracked:
		return rig.establishDirect(set, rig.flowsOf(1, flows, rig.published(publishedTracked), unix.IPPROTO_TCP, testrun.FlagSYN), flows)
	case setOpening:
		return rig.addSet(set, true, rig.flowsOf(6, min(flows, someFlows), rig.published(publishedTracked), unix.IPPROTO_TCP, testrun.FlagSYN))
	case setContested:
		// More than enough: some are in slots whose backend never changed.
		return rig.establishDirect(set, rig.flowsOf(2, 3*flows+100, rig.published(publishedContested), unix.IPPROTO_TCP, testrun.FlagSYN), flows)
	case setWrapped:
		all := rig.flowsOf(3, flows, rig.published(publishedLocal), unix.IPPROTO_TCP, testrun.FlagACK)
		for i := range all {
			all[i].Outer = [2]netip.Addr{rig.balancer, rig.local}
		}
		return rig.establish(set, all, bpf.ConntrackReply|bpf.ConntrackLocal|bpf.ConntrackDSR)
	}
	return fmt.Errorf("there is no such set")
}

// establishDirect has clients begin connections until so many have an entry, and continue them as after a
// reply. What they send then is the set.
func (rig *edgeRig) establishDirect(name string, all []testrun.Segment, want uint32) error {
	before, err := rig.counts()
	if err != nil {
		return err
	}
	var known []testrun.Segment
	sent := 0
	atOnce := rig.openAtOnce()
	for sent < len(all) && uint32(len(known)) < want {
		some := all[sent:min(sent+atOnce, len(all))]
		if err := rig.send(hookXDP, some); err != nil {
			return err
		}
		next, err := rig.goOn()
		if err != nil {
			return err
		}
		if len(next) > 0 {
			if err := rig.send(hookXDP, next); err != nil {
				return err
			}
		}
		known, sent = append(known, next...), sent+len(some)
	}
	n := uint64(len(known))
	if n < uint64(want) {
		return fmt.Errorf("%[2]d of %[1]d flows have an entry, want %[3]d", sent, n, want)
	}
	if err := rig.counted(before, map[string]uint64{"new": n, "established": n, "untracked": uint64(sent) - n}); err != nil {
		return fmt.Errorf("beginning flows: %w", err)
	}
	return rig.addSet(name, true, known[:want])
}

// goOn returns the next packets of clients whose flows have one half-open entry.
func (rig *edgeRig) goOn() (all []testrun.Segment, err error) {
	err = rig.flows.Unreplied.Walk(func(key bpf.Tuple, t *bpf.ConntrackEntry) bool {
		if t.IsOneSided() {
			s := segmentOf(key, testrun.FlagACK)
			s.Sequence = t.Next
			all = append(all, s)
		}
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("read the entries of flows: %w", err)
	}
	return all, nil
}

// arrived reports whether a packet was sent as the case says, and to whom.
func (rig *edgeRig) arrived(kind string, before, after testrun.Segment, j testrun.Journey) bool {
	endpoint := slices.Contains(rig.endpoints, j.To)
	switch kind {
	case testrun.DSRIPIP:
		return after == before && j.From == rig.node && endpoint
	case testrun.DSRGeneve:
		return after == before && j.From == rig.node && j.To == rig.balancer &&
			slices.Contains(rig.endpoints, j.Named.Addr()) && j.Named.Port() == harness.ServerPort
	}
	asked := before.To
	before.To = netip.AddrPortFrom(j.To, harness.ServerPort)
	return after == before && j.From == before.From.Addr() && j.Named == asked && endpoint
}
