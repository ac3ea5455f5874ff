// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"net/netip"
	"testing"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/test/packet/model"
)

// ofProtocol is a client's packet to the Service with a protocol without ports. `kind` is the type of an ICMP
// message.
func (f family) ofProtocol(protocol, kind uint8) probe {
	return probe{from: on(f.client, uint16(kind)<<8), to: on(f.vip, 0), protocol: protocol, payload: []byte("something")}
}

// R21: a ClusterIP refuses every protocol with ICMP port unreachable, whoever the client is, and an unused
// address of a ServiceCIDR drops it. It passes at other addresses.
func TestProtocolsWithoutPorts(t *testing.T) {
	const gre, esp, ah, ospf, udpLite = 47, 50, 51, 89, 136
	w := newScene(t)
	w.eachFamily(t, func(t *testing.T, at hook, f family) {
		for _, protocol := range []uint8{gre, esp, ah, ospf, udpLite, f.icmp()} {
			for _, from := range []netip.Addr{f.client, f.pod} {
				asked := f.ofProtocol(protocol, 200)
				asked.from = on(from, asked.from.Port())
				before := w.counts(t)
				w.leaves(t, at, asked.frame(t), model.ActionSend, asked.icmpAnswer(t, f.vip, [2]uint8{3, 3}, [2]uint8{1, 4}, 0))
				w.counted(t, before, model.Rejected)
				asked.to = on(f.unused, 0)
				w.drops(t, at, asked.frame(t), model.DropNoService)
				for _, to := range []netip.Addr{f.own, f.local, f.remote, f.loopback()} {
					asked.to = on(to, 0)
					w.other(t, at, asked.frame(t))
				}
			}
			asked := f.ofProtocol(protocol, 200)
			asked.to = on(f.unused, 0)
			w.drops(t, atEgress, asked.frame(t), model.DropNoService)
		}
	})
}

// ICMP errors and neighbour discovery pass at addresses of Services: the flow that an error is about may be
// another node's.
func TestMessagesThatAskNothing(t *testing.T) {
	w := newScene(t)
	w.eachFamily(t, func(t *testing.T, at hook, f family) {
		kinds := []uint8{3, 4, 5, 11, 12}
		if f.client.Is6() {
			kinds = []uint8{1, 2, 3, 4, 133, 134, 135, 136, 137}
		}
		for _, kind := range kinds {
			for _, to := range []netip.Addr{f.vip, f.unused} {
				asked := f.ofProtocol(f.icmp(), kind)
				asked.to = on(to, 0)
				w.other(t, at, asked.frame(t))
				w.ignores(t, atEgress, asked.frame(t))
			}
		}
	})
}

// R21: an address of this node inside a ServiceCIDR belongs to no Service.
func TestOwnAddressInServiceCIDR(t *testing.T) {
	w := newScene(t)
	w.eachFamily(t, func(t *testing.T, at hook, f family) {
		defer w.apply(t, w.scene())
		asked := []probe{f.question(tcp, toRemote), f.question(udp, toRemote), f.ofProtocol(f.icmp(), 200)}
		for i := range asked {
			asked[i].to = on(f.unused, asked[i].to.Port())
			w.drops(t, at, asked[i].frame(t), model.DropNoService)
		}
		one := netip.PrefixFrom(f.unused, f.unused.BitLen())
		key := bpf.NetworkKey{Prefixlen: bpf.PrefixLen(one), Address: bpf.AddressFrom(f.unused)}
		w.put(t, bpf.EdgeTCMapNetworks, key, bpf.NetworkOwn)
		for _, p := range asked {
			w.other(t, at, p.frame(t))
		}
	})
}
