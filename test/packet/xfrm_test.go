// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/test/packet/model"
)

// policy is the selector of an XFRM policy. Ports and the protocol are 0 if it matches any, portMask is 0 for whole
// ports.
type policy struct {
	from, to         netip.Prefix
	fromPort, toPort uint16
	portMask         uint16
	protocol         uint8
}

// pair is the policy as the programs have it.
func (p policy) pair() (pair bpf.XFRMPair) {
	mask := func(of netip.Prefix) (m bpf.Address) {
		bits := of.Bits()
		if of.Addr().Is4() {
			bits += 96
		}
		copy(m.Bytes[:], net.CIDRMask(bits, 128))
		return m
	}
	port := func(port uint16) (value, mask uint16) {
		switch {
		case port == 0:
			return 0, 0
		case p.portMask == 0:
			return bpf.NetworkOrder(port), 0xffff
		}
		return bpf.NetworkOrder(port & p.portMask), bpf.NetworkOrder(p.portMask)
	}
	pair.Source, pair.SourceMask = bpf.AddressFrom(p.from.Masked().Addr()), mask(p.from)
	pair.Destination, pair.DestinationMask = bpf.AddressFrom(p.to.Masked().Addr()), mask(p.to)
	pair.SourcePort, pair.SourcePortMask = port(p.fromPort)
	pair.DestinationPort, pair.DestinationPortMask = port(p.toPort)
	pair.Protocol = uint32(p.protocol)
	return pair
}

// withPolicies writes XFRM policies.
func (w *world) withPolicies(t testing.TB, all ...policy) {
	t.Helper()
	rows, none := bpf.XFRMPolicies{Count: uint32(len(all))}, uint32(1)
	for i, p := range all {
		rows.Pairs[i], none = p.pair(), 0
	}
	w.put(t, bpf.EdgeTCMapXfrmPolicies, uint32(0), rows)
	w.put(t, bpf.EdgeTCMapXfrmNone, uint32(0), none)
}

// The first packet of a flow is dropped if a policy's selector matches it as it arrived, with the backend's address, or
// with the node's, or replies to these: by each of the addresses, by ports and by the protocol.
func TestXFRMPolicies(t *testing.T) {
	w := newScene(t)
	w.each(t, func(t *testing.T, at hook, f family, protocol uint8) {
		one := func(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
		every, other := netip.PrefixFrom(f.client, 0), families[0]
		near := func(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a.Next().Next(), a.BitLen()-3) }
		if f.client.Is4() {
			other = families[1]
		}
		client, vip, backend, own := one(f.client), one(f.vip), one(f.remote), one(f.own)
		type row struct {
			name    string
			policy  policy
			concern bool
		}
		rows := []row{
			{"all packets", policy{from: every, to: every}, true},
			{"the packet", policy{from: client, to: vip}, true},
			{"the packet of another client", policy{from: one(f.client.Next()), to: vip}, false},
			{"the packet to another address", policy{from: client, to: one(f.unused)}, false},
			{"networks", policy{from: near(f.client), to: near(f.vip)}, true},
			{"half of the client's network", policy{from: netip.PrefixFrom(f.client, f.client.BitLen()/2), to: every}, true},
			{"another network", policy{from: netip.PrefixFrom(f.narrowClient, f.client.BitLen()-8), to: every}, false},
			{"another network of backends", policy{from: every, to: netip.PrefixFrom(f.narrow, f.client.BitLen()*3/4)}, false},
			{"the packet to the backend", policy{from: client, to: backend}, true},
			{"the node's packet", policy{from: own, to: backend}, true},
			{"the node's packet to another backend", policy{from: own, to: one(f.local)}, false},
			{"the reply", policy{from: vip, to: client}, true},
			{"the backend's reply", policy{from: backend, to: own}, true},
			{"the reply to another client", policy{from: vip, to: one(f.client.Next())}, false},
			{"the other family", policy{from: one(other.client), to: netip.PrefixFrom(other.vip, 0)}, false},
			{"the protocol", policy{from: every, to: every, protocol: protocol}, true},
			{"another protocol", policy{from: every, to: every, protocol: tcp + udp - protocol}, false},
			{"the client's port", policy{from: every, to: every, fromPort: clientPort}, true},
			{"another port of the client", policy{from: every, to: every, fromPort: clientPort + 1}, false},
			{"the Service's port", policy{from: every, to: every, toPort: toRemote}, true},
			{"another port of the Service", policy{from: every, to: every, toPort: toRemote + 1}, false},
			{"the backend's port", policy{from: every, to: backend, toPort: targetPort}, true},
			{"both ports", policy{from: every, to: every, fromPort: clientPort, toPort: toRemote}, true},
			{"the ports of the reply", policy{from: every, to: every, fromPort: toRemote, toPort: clientPort}, true},
			{"the ports of the reply in one direction", policy{from: client, to: every, fromPort: toRemote}, false},
			{"a range of ports", policy{from: every, to: every, toPort: toRemote + 1, portMask: 0xfffe}, true},
			{"another range of ports", policy{from: every, to: every, toPort: toRemote + 2, portMask: 0xfffe}, false},
			{"a range of the client's ports", policy{from: every, to: every, fromPort: clientPort + 1, portMask: 0xfffe}, true},
		}
		for last := 3; last < f.client.BitLen()/8; last += 4 {
			b := f.client.AsSlice()
			b[last] ^= 1
			a, _ := netip.AddrFromSlice(b)
			rows = append(rows, row{fmt.Sprintf("a client with another byte %d", last), policy{from: one(a), to: every}, false})
		}
		for _, c := range rows {
			t.Run(c.name, func(t *testing.T) {
				w.enter(t)
				w.forget(t)
				w.withPolicies(t, policy{from: one(f.unused), to: one(f.unused)}, c.policy)
				question := f.question(protocol, toRemote)
				if c.concern {
					w.drops(t, at, question.frame(t), model.DropXFRM)
					w.remembersNothing(t)
				} else {
					w.snatPort(t, at, question.frame(t))
				}
				w.forget(t)
				w.withPolicies(t)
				w.snatPort(t, at, question.frame(t))
			})
		}
	})
}
