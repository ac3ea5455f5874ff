// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// refuseUnserved adds the rules of docs/operate/install.md for addresses that a router sends to node-a: the
// stack refuses packets from there that no Service takes, until the end of the test.
func (w *world) refuseUnserved() {
	w.t.Helper()
	nl, err := w.Host("node-a").Netlink()
	w.must(err)
	w.t.Cleanup(nl.Close)
	for family, prefixes := range [][]string{{externalRanges[0], ingressRanges[0]}, {externalRanges[1], ingressRanges[1]}} {
		for _, prefix := range prefixes {
			rule := netlink.NewRule()
			rule.Family, rule.IifName, rule.Dst, rule.Type = []int{unix.AF_INET, unix.AF_INET6}[family], "eth0", network(prefix), unix.RTN_UNREACHABLE
			w.must(nl.RuleAdd(rule))
			w.t.Cleanup(func() { w.must(nl.RuleDel(rule)) })
		}
	}
}

// A packet to a port that a routed address does not serve returns to the router again and again until its hops
// end; with the rules of docs/operate/install.md it is refused at once. These disturb nobody: external clients,
// the node's sockets and pods, with hooks and without, are served at the address, also if the verdict depends
// on their source.
func TestRoutedAddressWithoutALoop(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := borrowWorld(t, "--edge-mode="+mode)
		w.lead()
		w.manyClients()
		w.apply("web", objects(w.everywhere("web", 1, "a1", "a2", "b1"))...)
		admitted, all := w.everywhere("admitted", 2, "a2", "b1")
		for _, name := range []string{"client", "a1", "node-a"} {
			h := w.Host(name)
			admitted.Spec.LoadBalancerSourceRanges = append(admitted.Spec.LoadBalancerSourceRanges,
				netip.PrefixFrom(h.Addr4, 32).String(), netip.PrefixFrom(h.Addr6, 128).String())
		}
		w.apply("admitted", objects(admitted, all)...)
		w.wantUnserved(syscall.EHOSTUNREACH) // hops ended
		w.refuseUnserved()
		w.wantUnserved(syscall.ENETUNREACH)
		for _, optedOut := range []bool{false, true} {
			if optedOut {
				w.optOut("a1")
			}
			for family := range 2 {
				for _, kind := range []string{"ExternalIP", "LoadBalancer"} {
					for _, from := range []string{"client", "node-a", "a1", "b1"} {
						for _, network := range []string{"tcp", "udp"} {
							w.wantServedAs(from, network, w.address(kind, 1, family), "a1", "a2", "b1")
							if kind == "LoadBalancer" && from != "b1" {
								w.wantServedAs(from, network, w.address(kind, 2, family), "a2", "b1")
							}
						}
					}
				}
			}
		}
	})
}

// wantUnserved checks the client's error at ports that the addresses do not serve.
func (w *world) wantUnserved(want error) {
	w.t.Helper()
	for family := range 2 {
		for _, kind := range []string{"ExternalIP", "LoadBalancer"} {
			to := netip.AddrPortFrom(w.address(kind, 1, family).Addr(), 81)
			ctx, cancel := context.WithTimeout(w.t.Context(), patience)
			_, err := w.Host("client").Dial(ctx, "tcp", to.String())
			cancel()
			if !errors.Is(err, want) {
				w.t.Errorf("connect to %s: %v, want %v", to, err, want)
			}
		}
	}
}
