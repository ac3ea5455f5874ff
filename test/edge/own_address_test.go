// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/test/lab"
)

// ownVIP is a Service whose addresses of one kind are node-a's own.
func (w *world) ownVIP(kind string, pods ...string) (*corev1.Service, []*discoveryv1.EndpointSlice) {
	s, all := w.public(pods...)
	a := w.Host("node-a")
	own := []string{a.Addr4.String(), a.Addr6.String()}
	switch kind {
	case "ClusterIP":
		s.Spec.ClusterIP, s.Spec.ClusterIPs = own[0], own
	case "ExternalIP":
		s.Spec.ExternalIPs = own
	case "LoadBalancer":
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		for _, ip := range own {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
		}
	}
	return s, all
}

// R21: a VIP that is the node's own address does not cut the node off. Its programs at other ports are reached
// from outside and from itself, and its own connections from that address work; the port of the VIP is served.
func TestOwnAddressAsVIP(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := borrowWorld(t, "--edge-mode="+mode)
		w.serveOnNodes()
		for _, kind := range []string{"ClusterIP", "ExternalIP", "LoadBalancer"} {
			w.apply("web", objects(w.ownVIP(kind, "b1"))...)
			for _, network := range []string{"tcp", "udp"} {
				port := map[string]uint16{"tcp": lab.PortTCP, "udp": lab.PortUDP}[network]
				for family, own := range addresses(w.Host("node-a"), port) {
					w.wantServed(network, own, "node-a")
					w.wantServedAs("node-a", network, own, "node-a")
					w.wantServed(network, netip.AddrPortFrom(own.Addr(), 80), "b1")
					answers := w.wantServedAs("node-a", network, addresses(w.Host("node-b"), port)[family], "node-b")
					if len(answers) > 0 && answers[0].Peer.Addr() != own.Addr() {
						t.Errorf("the node's source is %s, and not the VIP %s", answers[0].Peer, own.Addr())
					}
				}
			}
			if t.Failed() {
				t.Fatalf("with the node's own address as %s", kind)
			}
		}
	})
}

// R21: whether an address is the node's own is followed, for a ClusterIP and for an unused address of a
// ServiceCIDR.
func TestOwnAddressComesAndGoes(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := borrowWorld(t, "--edge-mode="+mode)
		w.lead()
		w.apply("web", objects(w.everywhere("web", 1, "b1"))...)
		for family := range 2 {
			used, unused := w.address("ClusterIP", 1, family).Addr(), w.address("ClusterIP", 200, family).Addr()
			before := func() {
				w.eventually("other ports are refused", func() bool {
					_, err := w.ask("tcp", netip.AddrPortFrom(used, lab.PortTCP))
					return errors.Is(err, syscall.ECONNREFUSED)
				})
				w.wantSilence("tcp", netip.AddrPortFrom(unused, lab.PortTCP), "drop_no_service")
			}
			before()
			for _, own := range []netip.Addr{used, unused} {
				w.must(w.Host("node-a").AddAddress("eth0", netip.PrefixFrom(own, own.BitLen())))
			}
			w.must(w.agent.WaitForTables("own addresses", func(t *api.Tables) bool { return !refusesOthers(t, used) }))
			for _, own := range []netip.Addr{used, unused} {
				w.wantServed("tcp", netip.AddrPortFrom(own, lab.PortTCP), "node-a")
				w.wantServedAs("node-a", "tcp", netip.AddrPortFrom(own, lab.PortTCP), "node-a")
			}
			w.wantServed("tcp", w.address("ClusterIP", 1, family), "b1")
			for _, own := range []netip.Addr{used, unused} {
				w.must(removeAddress(w.Host("node-a"), "eth0", own))
			}
			before()
		}
	})
}

// refusesOthers reports whether all other ports of a ClusterIP are refused.
func refusesOthers(t *api.Tables, address netip.Addr) bool {
	return slices.ContainsFunc(t.Services, func(s api.Service) bool {
		return slices.ContainsFunc(s.Frontends, func(f api.Frontend) bool {
			return f.Kind == service.ClusterIPOtherPorts && f.Address == address.String()
		})
	})
}

func removeAddress(h *lab.Host, device string, address netip.Addr) error {
	nl, link, err := h.OpenDevice(device)
	if err != nil {
		return err
	}
	defer nl.Close()
	one := &net.IPNet{IP: address.AsSlice(), Mask: net.CIDRMask(address.BitLen(), address.BitLen())}
	if err := nl.AddrDel(link, &netlink.Addr{IPNet: one}); err != nil {
		return fmt.Errorf("host %s: removing %s from %s: %w", h.Name, address, device, err)
	}
	return nil
}
