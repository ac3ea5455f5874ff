// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/conntrack"
	"beeline.io/beeline/internal/node"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/util/plural"
	"beeline.io/beeline/internal/util/wakeup"
)

// policyShare: walks of all flows for policies take at most 1/policyShare of the time.
const policyShare = 20

// followPolicies writes the XFRM policies when they have changed, and has the flows deleted that they concern, until
// ctx ends. A policy that comes or goes does not wait for a walk of the flows.
func (e *Edge) followPolicies(ctx context.Context, changed wakeup.Signal) {
	latest := make(chan []node.XFRMPolicy, 1)
	var walks sync.WaitGroup
	walks.Go(func() { e.deleteFlowsOf(ctx, latest) })
	defer walks.Wait()
	var last []node.XFRMPolicy
	for changed.Wait(ctx) && wakeup.Sleep(ctx, settleTime) {
		e.mu.Lock()
		policies := e.writePolicies()
		e.mu.Unlock()
		if len(policies) > 0 && !slices.Equal(policies, last) {
			select { // only the latest policies count
			case <-latest:
			default:
			}
			latest <- policies
		}
		last = policies
	}
}

// deleteFlowsOf deletes the flows that policies concern, for each that it receives, until ctx ends.
func (e *Edge) deleteFlowsOf(ctx context.Context, latest <-chan []node.XFRMPolicy) {
	for {
		select {
		case <-ctx.Done():
			return
		case policies := <-latest:
			begin := time.Now()
			e.deleteConcerned(policies)
			if !wakeup.Sleep(ctx, policyShare*time.Since(begin)) {
				return
			}
		}
	}
}

// deleteConcerned deletes the flows that policies concern: their next packet is that of a new flow.
func (e *Edge) deleteConcerned(policies []node.XFRMPolicy) {
	concerned := func(from, to netip.AddrPort, protocol uint8) bool {
		return slices.ContainsFunc(policies, func(p node.XFRMPolicy) bool { return p.Matches(from, to, protocol) || p.Matches(to, from, protocol) })
	}
	n, err := conntrack.DeleteFlows(e.flows, func(key conntrack.Tuple, entry *conntrack.Entry) bool {
		from, to := entry.Xlate.From(), entry.Xlate.To()
		return concerned(key.From(), key.To(), key.Protocol) || concerned(from, to, key.Protocol) || concerned(key.From(), to, key.Protocol)
	}, e.datapath.WaitForReaders)
	if err != nil {
		e.config.Log.Error("flows that XFRM policies concern may go on in clear", "error", err)
	}
	if n > 0 {
		e.config.Log.Warn("deleted flows that XFRM policies concern", "flows", n)
	}
}

// writePolicies has the programs drop new flows that XFRM policies concern, and returns these policies. If the policies
// cannot be read or written, those written last stay. The caller holds the lock.
func (e *Edge) writePolicies() []node.XFRMPolicy {
	policies, err := e.policies()
	if err == nil {
		policies = slices.DeleteFunc(policies, func(p node.XFRMPolicy) bool { return !concernsEdge(&p) })
		err = e.datapath.SetXFRMPolicies(pairsOf(policies))
	}
	var all condition.List
	switch {
	case err != nil:
		all = append(all, condition.EdgeXFRMUnknown.New("%v", err))
	case len(policies) > 0:
		all = append(all, condition.EdgeWithheldByXFRM.New("flows that XFRM policies concern are dropped: %s", list(policies, func(p *node.XFRMPolicy) string { return p.String() })))
	}
	e.logNew(all, e.withheld)
	e.withheld = all
	if err != nil {
		return nil
	}
	return policies
}

// droppedForXFRM is the counter of packets that were dropped for XFRM policies (enum edge_reason).
const droppedForXFRM = "drop_xfrm"

// withheldNow returns the conditions of XFRM policies: that some concern flows is a note until such flows come. The
// caller holds the lock.
func (e *Edge) withheldNow(now time.Time) condition.List {
	all, drops := slices.Clone(e.withheld), &e.withheldDrops
	for i, c := range all {
		if c.Code == condition.EdgeWithheldByXFRM.Code && drops.Recent(now) {
			all[i] = condition.EdgeDropsByXFRM.New("%s (%s so far, the last at %s)", c.Message, plural.Of(drops.Count, "packet"), drops.Last.Format(time.TimeOnly))
		}
	}
	return all
}

// concernsEdge reports whether a policy can match packets of clients and backends, which have no mark as they arrive.
// An xfrm interface applies its policies itself to what the edge sends there, and only what was encrypted arrives by
// it.
func concernsEdge(p *node.XFRMPolicy) bool { return p.Interface == 0 && p.MatchesUnmarked() }

// pairsOf returns the packets that policies concern. Policies of several directions that match the same packets, or
// their replies, are one. If there are more than fit, all packets are concerned.
func pairsOf(policies []node.XFRMPolicy) (all bpf.XFRMPolicies) {
	seen := map[bpf.XFRMPair]bool{}
	add := func(pair bpf.XFRMPair) {
		if seen[pair] || seen[reversed(pair)] || int(all.Count) >= len(all.Pairs) {
			return
		}
		seen[pair] = true
		all.Pairs[all.Count] = pair
		all.Count++
	}
	for i := range policies {
		add(pairOf(&policies[i]))
	}
	if len(seen) < len(all.Pairs) {
		return all
	}
	all = bpf.XFRMPolicies{}
	clear(seen)
	add(bpf.XFRMPair{})
	return all
}

func pairOf(p *node.XFRMPolicy) bpf.XFRMPair {
	var onlyV6 uint32
	if p.Source.Addr().Is6() { // ::/0 has all mapped IPv4 addresses, too
		onlyV6 = 1
	}
	return bpf.XFRMPair{
		Source: bpf.AddressFrom(p.Source.Addr()), SourceMask: maskOf(p.Source),
		Destination: bpf.AddressFrom(p.Destination.Addr()), DestinationMask: maskOf(p.Destination),
		SourcePort: bpf.NetworkOrder(p.SourcePort.Value & p.SourcePort.Mask), SourcePortMask: bpf.NetworkOrder(p.SourcePort.Mask),
		DestinationPort: bpf.NetworkOrder(p.DestinationPort.Value & p.DestinationPort.Mask), DestinationPortMask: bpf.NetworkOrder(p.DestinationPort.Mask),
		Protocol: uint32(p.Protocol), OnlyV6: onlyV6,
	}
}

func reversed(p bpf.XFRMPair) bpf.XFRMPair {
	p.Source, p.Destination, p.SourceMask, p.DestinationMask = p.Destination, p.Source, p.DestinationMask, p.SourceMask
	p.SourcePort, p.DestinationPort, p.SourcePortMask, p.DestinationPortMask = p.DestinationPort, p.SourcePort, p.DestinationPortMask, p.SourcePortMask
	return p
}

// maskOf returns the mask of a prefix. IPv4 is mapped into IPv6, and matches no IPv6.
func maskOf(p netip.Prefix) (mask bpf.Address) {
	bits := p.Bits()
	if p.Addr().Is4() {
		bits += 96
	}
	for i := range mask.Bytes {
		n := min(max(bits-8*i, 0), 8)
		mask.Bytes[i] = ^byte(0xff >> n)
	}
	return mask
}

// mostDescribed is how many policies the condition names.
const mostDescribed = 3
