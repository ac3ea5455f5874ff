// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
)

// EdgeSubject is the edge whose packets bypass rules.
type EdgeSubject struct {
	// Devices are those that it forwards between.
	Devices []Device
	// Served are the addresses that Services have for themselves, ServedPorts the ports of all of them.
	Served      []netip.Addr
	ServedPorts []Ports
	// Own are the addresses of the node, NodePorts the ports of them that Services and Pods have.
	Own       []netip.Addr
	NodePorts []Ports
	// SNATPorts are those of Own from which the edge sends to backends; none: they are not known.
	SNATPorts []Ports
	// Backends are the addresses of backends on other nodes, BackendPorts their ports; none: they are not known.
	Backends     []netip.Addr
	BackendPorts []Ports
}

// Ports are the ports from the first to the last.
type Ports struct{ First, Last uint16 }

// FindForEdge searches for rules that would drop, reject, queue or redirect packets of Services, and that the edge
// bypasses, by the kinds of Finding.Kind: at ingress of netdev and at prerouting, for packets to Services and from
// backends on other nodes; at forward and postrouting, for packets to these backends; and at egress of netdev, for
// these and for replies, which the kernel skips for what a program at tc ingress redirects, and which XDP never meets.
// Packets to backends have been translated by kube-proxy when they meet these rules (ct status dnat). Rules that
// translate sources do not count, nor those of kube-proxy, those of iptables-legacy in table nat, and those of CNI
// plugins that publish HostPorts. The caller is in the network namespace of NewEdgeWatcher.
func (w *Watcher) FindForEdge(s EdgeSubject) (found []Finding, err error) {
	err = w.finder.retry(func() error {
		if err := w.read(); err != nil {
			return err
		}
		bases, err := readable(w.finder.all())
		if err != nil {
			return err
		}
		found, err = s.find(bases)
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
			if !w.base.sees(v6) || w.base.family == familyBridge {
				continue
			}
			for _, c := range s.classes(w, v6) {
				if w.translated = c.translated; w.translated {
					c.states &^= withoutEntry
				}
				w.start(&c.class)
			}
		}
	}
	return w.found, w.err
}

// An edgeClass is packets as they meet a hook on a node with kube-proxy.
type edgeClass struct {
	class
	translated bool // by DNAT
}

// classes returns the packets that the base chain of a walk would see, as kube-proxy's rules have them on their way.
func (s *EdgeSubject) classes(w *walk, v6 bool) []edgeClass {
	devices := w.subject.devices(func(*Device) bool { return true })
	any := packets(v6, devices, ctAll)
	own, backends := addressSpans(s.Own, v6), addressSpans(s.Backends, v6)
	toService, toNode, toBackend, fromBackend, toClient := any, any, any, any, any
	toService.dst, toService.dport, toService.protocols = addressSpans(s.Served, v6), portsOf(s.ServedPorts), allProtocols
	toNode.dst, toNode.dport = own, portsOf(s.NodePorts)
	toBackend.dst, toBackend.dport = backends, portsOrAll(s.BackendPorts)
	fromBackend.src, fromBackend.sport = backends, toBackend.dport
	fromBackend.dst, fromBackend.dport = own, portsOrAll(s.SNATPorts)
	toClient.src, toClient.sport = addressSpans(slices.Concat(s.Served, s.Own), v6), portsOf(slices.Concat(s.ServedPorts, s.NodePorts))
	arriving := []edgeClass{{class: toService}, {class: toNode}, {class: fromBackend}}
	switch b := w.base; {
	case b.nat && (b.legacy || b.hook != prerouting):
		return nil
	case b.nat:
		return arriving[:2]
	case b.hook == ingress || b.hook == prerouting && b.priority < priorityDestination:
		return arriving
	case b.hook == prerouting:
		fromBackend.dst, fromBackend.dport = any.dst, allPorts
		return []edgeClass{{class: toService}, {class: toNode}, {class: toBackend, translated: true}, {class: fromBackend, translated: true}}
	case b.hook == egress:
		return []edgeClass{{class: toBackend, translated: true}, {class: toClient, translated: true}}
	}
	return []edgeClass{{class: toBackend, translated: true}}
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

func portsOf(some []Ports) ports {
	var all []interval[port]
	for _, p := range some {
		all = append(all, interval[port]{port(p.First), port(p.Last)})
	}
	return merged(all)
}

func portsOrAll(some []Ports) ports {
	if len(some) == 0 {
		return allPorts
	}
	return portsOf(some)
}

// kind is where the edge bypasses a rule, for the operator.
func (b *base) kind() string {
	switch {
	case b.family == familyNetdev || b.hook == ingress:
		return hookNames[b.hook] + " of netdev"
	case b.nat:
		return "nat " + hookNames[b.hook]
	}
	return hookNames[b.hook]
}

// publishesHostPorts reports whether a chain is of the CNI plugin portmap, which translates HostPorts as the edge does.
func publishesHostPorts(chain string) bool {
	return strings.HasPrefix(chain, "CNI-HOSTPORT-") || strings.HasPrefix(chain, "CNI-DN-")
}
