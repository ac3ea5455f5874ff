// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/service"
)

// socket says what a connect() meets, by the tables, in the order in which the
// programs look there (connect_verdict in bpf/lib/connect.h): the kernel has no test run
// for these, and a connect() of ours would leave its trace in session affinity.
func (x *explainer) socket() error {
	a := &x.answer
	a.Entry = "connect"
	x.note("connect() as the tables say: the programs of sockets cannot be run without a trace")
	if x.question.Device != "" {
		return wrong("--device has no effect with --socket: leave one of them out")
	}
	cookie, class, err := x.client()
	if err != nil {
		return err
	}
	a.Class = class.String()
	if isICMP(x.question.Protocol) {
		return wrong("--socket: no socket connects to %s: leave it out, for what the network brings", x.question.Protocol)
	}
	if x.question.Protocol == service.SCTP {
		return x.leaves(class, "left alone: of SCTP the packets are served")
	}
	optedOut, err := x.optedOut(cookie)
	if err != nil {
		return err
	}
	s, f := x.frontendOf(x.question.Destination, uint8(x.question.Protocol))
	if f == nil {
		return x.withoutFrontend(optedOut)
	}
	d := x.asked(s, f, class)
	switch {
	case optedOut:
		return x.leaves(class, "left alone: the pod has opted out of the socket shortcut")
	case f.Kind == service.ClusterIPOther && x.question.Protocol == service.UDP:
		return x.leaves(class, "left alone: connect() of a UDP socket sends nothing")
	case f.Restricted && f.ownAddress && class == service.FromNode:
		// The node asks its own address from that address.
		if !admits(f.SourceRanges, x.question.Destination.Addr()) {
			a.Rules = []string{"R25"}
			a.Verdict, a.Why = service.Drop.String(), "dropped (EPERM): the node's own address is not in loadBalancerSourceRanges"
			return nil
		}
	case f.Restricted:
		return x.leaves(class, "left alone: the admitted sources decide, and an unbound socket has none yet")
	}
	a.Rules = rulesOf(f, class, d, "")
	a.Verdict = d.Verdict
	switch d.Verdict {
	case service.Reject.String():
		a.Why = "refused (ECONNREFUSED): no endpoint, or no such port"
		return nil
	case service.Drop.String():
		a.Why = "dropped (EPERM): traffic policy Local, and no endpoint on this node"
		return nil
	case service.Pass.String():
		return x.passes("left alone")
	}
	a.Why = "the socket is connected to a backend"
	return x.choose(f, d, cookie)
}

// admits says whether a source is in one of the ranges.
func admits(ranges []string, source netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(text string) bool {
		p, err := netip.ParsePrefix(text)
		return err == nil && p.Contains(source)
	})
}

func (x *explainer) passes(why string) error {
	x.answer.Verdict, x.answer.Why = service.Pass.String(), why
	return nil
}

// leaves is for what the programs of sockets leave to the packet: the one of the
// device that it leaves by decides.
func (x *explainer) leaves(class service.SourceClass, why string) error {
	x.answer.Verdict, x.answer.Why, x.answer.Backends = service.Pass.String(), why, nil
	from := 0
	if class == service.FromPod {
		routes, err := netlink.RouteGet(x.question.Source.Addr().AsSlice())
		if err != nil || len(routes) == 0 {
			return fmt.Errorf("the route to %s: %w", x.question.Source.Addr(), err)
		}
		from = routes[0].LinkIndex
		in, err := x.attachedAt(datapath.EdgeIngress, from)
		if err != nil {
			return err
		}
		if in != nil {
			x.leftToTC(why)
			return x.throughTC(in)
		}
	}
	device, err := x.wayOut()
	if err != nil || device == nil {
		return err
	}
	x.leftToTC(why)
	e, err := x.run(datapath.EdgeEgress, device, from)
	if err != nil {
		return err
	}
	return x.explained(e)
}

// leftToTC forgets what the tables say of the socket: a program of tc decides.
func (x *explainer) leftToTC(why string) {
	x.answer.Before = append(x.answer.Before, "connect: "+why)
	x.answer.Entry, x.answer.Frontend, x.answer.Service = "tc", nil, ""
}

// wayOut is the device by which packets to the destination leave, nil if the edge is
// not there.
func (x *explainer) wayOut() (*net.Interface, error) {
	routes, err := netlink.RouteGet(x.question.Destination.Addr().AsSlice())
	if err != nil || len(routes) == 0 {
		x.note("the node has no route to %s: what the socket sends is lost", x.question.Destination.Addr())
		return nil, nil
	}
	device, err := x.attachedAt(datapath.EdgeEgress, routes[0].LinkIndex)
	if err == nil && device == nil {
		x.note("what the socket sends leaves by a device where Beeline is not attached, and meets nothing there")
	}
	return device, err
}

// attachedAt is a device, nil if the edge is not at a hook of it.
func (x *explainer) attachedAt(hook datapath.EdgeHook, index int) (*net.Interface, error) {
	attached, err := datapath.EdgeAttachments(x.bpffs)
	if err != nil {
		return nil, err
	}
	for _, a := range attached {
		if a.Hook == hook && !a.Detached && a.Device == index {
			return net.InterfaceByIndex(a.Device)
		}
	}
	return nil, nil
}

func (x *explainer) withoutFrontend(optedOut bool) error {
	to := x.question.Destination.Addr()
	networks, err := x.raw.Networks.All()
	if err != nil {
		return err
	}
	if kind := networkOf(networks, to); kind != datapath.NetworkService {
		return x.passes("left alone: no Service has this address and port")
	}
	if optedOut {
		return x.passes("left alone: the pod has opted out of the socket shortcut")
	}
	x.answer.Verdict, x.answer.Rules = service.Drop.String(), []string{"R21"}
	x.answer.Why = "dropped (EPERM): address of a ServiceCIDR that no Service has"
	return nil
}

// networkOf is what the longest prefix says that has an address.
func networkOf(networks map[datapath.NetworkKey]datapath.Network, a netip.Addr) (kind datapath.Network) {
	longest := -1
	for key, k := range networks {
		if p := key.Prefix(); p.Contains(a) && p.Bits() > longest {
			longest, kind = p.Bits(), k
		}
	}
	return kind
}

// frontendOf is frontend_of in bpf/lib/frontend.h.
func (x *explainer) frontendOf(to netip.AddrPort, protocol uint8) (*Service, *Frontend) {
	lookup := func(a netip.Addr) (*Service, *Frontend) {
		address := datapath.AddressFrom(a)
		if s, f := x.frontend(datapath.FrontendKey{Address: address, Port: datapath.NetworkOrder(to.Port()), Protocol: protocol}); f != nil {
			return s, f
		}
		return x.frontend(datapath.FrontendKey{Address: address})
	}
	loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	s, f := lookup(to.Addr())
	if f != nil || !to.Addr().Is4() || !to.Addr().IsLoopback() || to.Addr() == loopback {
		return s, f
	}
	if s, f = lookup(loopback); f != nil && !f.oneAddress {
		return s, f
	}
	return nil, nil
}

// choose says which backend session affinity has, or that it is by chance.
func (x *explainer) choose(f *Frontend, d Decision, cookie uint64) error {
	a := &x.answer
	if len(d.Backends) == 1 {
		a.Backend = &d.Backends[0]
	}
	if f.AffinitySeconds > 0 {
		a.Affinity = "new"
		kept, err := x.remembered(f, d, clientOf(cookie, x.question.Destination.Addr().Is4()))
		if err != nil {
			return err
		}
		for _, m := range d.Backends {
			if m.ID == kept {
				a.Backend, a.Affinity = &m, "kept"
			}
		}
	}
	if a.Backend == nil {
		return nil
	}
	to, err := netip.ParseAddrPort(a.Backend.Address)
	if err != nil {
		return nil // the tables are damaged, and say so in its place
	}
	a.Becomes = &Ends{a.Asks.Source, to, a.Asks.Protocol}
	return nil
}

// clientOf is client_of_namespace in bpf/lib/socket.h.
func clientOf(cookie uint64, v4 bool) (a datapath.Address) {
	binary.LittleEndian.PutUint32(a.Bytes[8:], uint32(cookie>>32))
	binary.LittleEndian.PutUint32(a.Bytes[12:], uint32(cookie))
	a.Bytes[0], a.Bytes[1] = 0xff, 6
	if v4 {
		a.Bytes[1] = 4
	}
	return a
}

func (x *explainer) optedOut(cookie uint64) (bool, error) {
	all, err := x.raw.OptedOut.All()
	_, out := all[cookie]
	return out, err
}
