// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"net/netip"
	"slices"
)

// A NoTrackFinder finds destinations that rules exempt from conntrack, and so from kube-proxy's rules, before they are
// routed.
type NoTrackFinder struct{ finder Finder }

// NoTrack is what rules exempt from conntrack, among the addresses of a search.
type NoTrack struct{ classes []class }

// Empty reports whether no rule exempts any of the addresses.
func (n *NoTrack) Empty() bool { return len(n.classes) == 0 }

// Has reports whether a rule exempts packets to an address and port, of TCP or UDP.
func (n *NoTrack) Has(to netip.AddrPort, protocol uint8) bool {
	return slices.ContainsFunc(n.classes, func(c class) bool { return c.leadsTo(to, protocol) })
}

// leadsTo reports whether a class has packets to a destination.
func (c *class) leadsTo(to netip.AddrPort, protocol uint8) bool {
	numbers := protocolNumbers(c.v6) // those without ports are last
	i := slices.Index(numbers[:2], protocol)
	return i >= 0 && c.protocols&(1<<i) != 0 && c.v6 == to.Addr().Is6() && c.dst.has(to.Addr()) && c.dport.has(port(to.Port()))
}

// Find searches the rules of the caller's network namespace for those that exempt packets to some of the addresses,
// except rules for packets of one device.
func (f *NoTrackFinder) Find(addresses []netip.Addr) (found NoTrack, err error) {
	if len(addresses) == 0 {
		return found, nil
	}
	err = f.finder.retry(func() error {
		if err := f.finder.readNFTables(); err != nil {
			return err
		}
		legacy, err := readLegacy(true, "raw")
		if err == nil {
			legacy, err = readable(legacy)
		}
		if err == nil {
			found, err = findNoTrack(addresses, slices.Concat(f.finder.nft.bases, legacy))
		}
		return err
	})
	return found, err
}

func findNoTrack(addresses []netip.Addr, bases []base) (found NoTrack, _ error) {
	w := &walk{subject: &Subject{Devices: []Device{{}}}, edge: true, onlyLosses: true, left: mostRules}
	any := deviceSet{true}
	for _, v6 := range []bool{false, true} {
		own, to := addressSpans(addresses, v6), packets(v6, any, withoutEntry)
		w.noTrack = func(c *class) {
			named := *c
			if named.dst, _ = c.dst.split(own); len(named.dst) > 0 {
				found.classes = append(found.classes, named)
			}
		}
		for i := range bases {
			w.base = &bases[i]
			if len(own) > 0 && w.base.hook == prerouting && w.base.family != familyBridge && w.base.priority < priorityConntrack && w.base.sees(v6) {
				w.start(&to)
			}
		}
	}
	return found, w.err
}
