// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"cmp"
	"net/netip"
	"slices"
)

// FindForEdge searches for rules that would drop packets which the edge forwards between devices, and that it bypasses:
// those at ingress of netdev; at forward and postrouting, for packets to backends on other nodes; and at egress of
// netdev, which the kernel skips for what a program at tc ingress redirects, and which XDP never meets. It does not
// search those at prerouting, and none of iptables-legacy. The caller is in the network namespace of NewWatcher.
func (w *Watcher) FindForEdge(devices []Device, backends []netip.Addr) (found []Finding, err error) {
	err = w.finder.retry(func() error {
		if err := w.read(); err != nil {
			return err
		}
		found, err = findForEdge(devices, backends, slices.DeleteFunc(w.finder.all(), func(b base) bool { return b.legacy }))
		return err
	})
	return found, err
}

func findForEdge(devices []Device, backends []netip.Addr, bases []base) ([]Finding, error) {
	slices.SortStableFunc(bases, func(a, b base) int { return cmp.Or(cmp.Compare(a.hook, b.hook), cmp.Compare(a.priority, b.priority)) })
	w := &walk{subject: &Subject{Devices: devices}, edge: true, onlyLosses: true, left: mostRules}
	all := w.subject.devices(func(*Device) bool { return true })
	for _, v6 := range []bool{false, true} {
		var remote []span
		for _, a := range backends {
			if a.Is6() == v6 {
				remote = append(remote, span{a, a})
			}
		}
		forwarded := class{
			v6: v6, in: all, out: all, src: everything(v6), dst: merged(remote), sport: allPorts, dport: allPorts, states: ctAll, protocols: allProtocols,
		}
		any := forwarded
		any.dst, any.states = everything(v6), ctAll|ctInvalid
		for i := range bases {
			switch w.base = &bases[i]; {
			case !w.base.sees(v6) || w.base.nat:
			case w.base.family == familyNetdev:
				w.start(&any)
			case w.base.family != familyBridge && (w.base.hook == forward || w.base.hook == postrouting):
				w.start(&forwarded)
			}
		}
	}
	return w.found, w.err
}
