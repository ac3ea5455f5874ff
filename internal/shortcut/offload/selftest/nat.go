// SPDX-License-Identifier: Apache-2.0

package selftest

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// A Translation is what the router does to the packets of a flow.
type Translation int

// The translations: DNAT is from a VIP, SNAT to an address of the router.
const (
	Plain Translation = iota
	DNAT
	SNAT
	Both
)

func (t Translation) String() string {
	return [...]string{"without NAT", "with DNAT", "with SNAT", "with DNAT and SNAT"}[t]
}

func (t Translation) dnat() bool { return t == DNAT || t == Both }
func (t Translation) snat() bool { return t == SNAT || t == Both }

// servicePort is the port that a client connects to.
func (t Translation) servicePort() uint16 { return 8080 + uint16(t) }

// serverPort is the port at the server; by DNAT it differs from servicePort.
func (t Translation) serverPort() uint16 {
	if t.dnat() {
		return 9080 + uint16(t)
	}
	return t.servicePort()
}

// natTable is the router's table of rules.
var natTable = &nftables.Table{Family: nftables.TableFamilyINet, Name: "translations"}

// translate adds the router's NAT rules.
func (w *World) translate() error {
	c, err := nftables.New(nftables.WithNetNSFd(w.Router.FD()))
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	c.AddTable(natTable)
	pre := natChain(c, "prerouting", nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest)
	post := natChain(c, "postrouting", nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
	for i := range w.families(ServerAddresses) {
		for t := range Both + 1 {
			if t.dnat() {
				c.AddRule(&nftables.Rule{Table: natTable, Chain: pre, Exprs: dnat(VIPs[i], ServerAddresses[i].Addr(), t)})
			}
			if t.snat() {
				c.AddRule(&nftables.Rule{Table: natTable, Chain: post, Exprs: snat(toServer[i].Addr(), t)})
			}
		}
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("add rules with NAT to nftables: %w", err)
	}
	return nil
}

func natChain(c *nftables.Conn, name string, hook *nftables.ChainHook, priority *nftables.ChainPriority) *nftables.Chain {
	return c.AddChain(&nftables.Chain{Table: natTable, Name: name, Type: nftables.ChainTypeNAT, Hooknum: hook, Priority: priority})
}

func dnat(from, to netip.Addr, t Translation) []expr.Any {
	offset, length := uint32(16), uint32(4) // of the destination in the header
	if from.Is6() {
		offset, length = 24, 16
	}
	return append(toPort(from, t.servicePort()),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length},
		&expr.Cmp{Register: 1, Op: expr.CmpOpEq, Data: from.AsSlice()},
		&expr.Immediate{Register: 1, Data: to.AsSlice()},
		&expr.Immediate{Register: 2, Data: binary.BigEndian.AppendUint16(nil, t.serverPort())},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: family(to), RegAddrMin: 1, RegProtoMin: 2, Specified: true})
}

func snat(to netip.Addr, t Translation) []expr.Any {
	return append(toPort(to, t.serverPort()),
		&expr.Immediate{Register: 1, Data: to.AsSlice()},
		&expr.NAT{Type: expr.NATTypeSourceNAT, Family: family(to), RegAddrMin: 1})
}

// toPort matches packets of an address's family to a port.
func toPort(of netip.Addr, port uint16) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Register: 1, Op: expr.CmpOpEq, Data: []byte{byte(family(of))}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Register: 1, Op: expr.CmpOpEq, Data: binary.BigEndian.AppendUint16(nil, port)},
	}
}

func family(of netip.Addr) uint32 {
	if of.Is6() {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}
