// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"cmp"
	"net/netip"
	"slices"
)

// EdgeSubject is the edge whose packets bypass rules.
type EdgeSubject struct {
	// Devices are those that it forwards between.
	Devices []Device
	// Served are the addresses of Services, Backends those on other nodes, Own those of the node.
	Served, Backends, Own []netip.Addr
}

// FindForEdge searches for rules that would drop packets which the edge forwards between devices, and that it bypasses:
// those at ingress of netdev; at prerouting, for packets to Services and from backends on other nodes; at forward and
// postrouting, for packets to these backends; and at egress of netdev, which the kernel skips for what a program at tc
// ingress redirects, and which XDP never meets. Of iptables-legacy, chains count that may drop packets. Rules that
// translate packets do not count, nor those of kube-proxy. The caller is in the network namespace of NewEdgeWatcher.
func (w *Watcher) FindForEdge(s EdgeSubject) (found []Finding, err error) {
	err = w.finder.retry(func() error {
		if err := w.read(); err != nil {
			return err
		}
		found, err = s.find(slices.DeleteFunc(w.finder.all(), withoutLoss))
		return err
	})
	return found, err
}

func (s *EdgeSubject) find(bases []base) ([]Finding, error) {
	slices.SortStableFunc(bases, func(a, b base) int { return cmp.Or(cmp.Compare(a.hook, b.hook), cmp.Compare(a.priority, b.priority)) })
	w := &walk{subject: &Subject{Devices: s.Devices}, edge: true, onlyLosses: true, left: mostRules}
	for _, v6 := range []bool{false, true} {
		for i := range bases {
			w.base, w.markedBefore = &bases[i], w.marked
			if !w.base.sees(v6) || w.base.nat || w.base.family == familyBridge {
				continue
			}
			for _, c := range s.classes(w, v6) {
				w.start(&c)
			}
		}
	}
	return w.found, w.err
}

// classes returns the packets that the base chain of a walk would see, as kube-proxy's rules have them on their way.
func (s *EdgeSubject) classes(w *walk, v6 bool) (all []class) {
	devices := w.subject.devices(func(*Device) bool { return true })
	any := class{
		v6: v6, in: devices, out: devices, src: everything(v6), dst: everything(v6), sport: allPorts, dport: allPorts, states: ctAll, protocols: allProtocols,
	}
	backends := addressSpans(s.Backends, v6)
	toService, toBackend, fromBackend := any, any, any
	toService.dst, toBackend.dst = addressSpans(s.Served, v6), backends
	fromBackend.src, fromBackend.dst = backends, addressSpans(s.Own, v6)
	switch b := w.base; {
	case b.family == familyNetdev:
		any.states |= ctInvalid
		return []class{any}
	case b.hook == prerouting && b.priority < priorityDestination:
		return []class{toService, fromBackend}
	case b.hook == prerouting:
		fromBackend.dst = any.dst
		return []class{toService, toBackend, fromBackend}
	}
	return []class{toBackend}
}

func addressSpans(addresses []netip.Addr, v6 bool) spans {
	var all []span
	for _, a := range addresses {
		if a.Is6() == v6 {
			all = append(all, span{a, a})
		}
	}
	return merged(all)
}

// withoutLoss reports whether a chain of iptables-legacy drops nothing.
func withoutLoss(b base) bool {
	c, ok := b.table.(*legacyChain)
	return ok && !c.loses && !b.drop
}
