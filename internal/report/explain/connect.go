// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
)

// socket explains the connect() of a new socket with a dry run of the socket programs' decision.
func (x *explainer) socket() error {
	a := &x.answer
	a.Hook = "connect"
	cookie, class, err := x.client()
	if err != nil {
		return err
	}
	a.ClientClass = class.String()
	if isICMP(x.question.Protocol) {
		return api.BadRequest("%s has no connect(): use `beeline explain packet` for its packets", x.question.Protocol)
	}
	e, other, err := bpf.ExplainConnect(x.bpffs, bpf.ConnectCall{
		NetnsCookie: cookie, Destination: x.question.Destination, Protocol: uint8(x.question.Protocol),
	})
	if err != nil {
		return err
	}
	if other {
		x.note("the attached socket programs are of another version of Beeline than this command, and may decide differently")
	}
	return x.connected(e)
}

// connected converts the result of the socket programs.
func (x *explainer) connected(e *bpf.ConnectExplanation) error {
	a, class := &x.answer, service.SourceClass(e.Class)
	a.Verdict = codec.VerdictOf(bpf.Verdict(e.Verdict)).String()
	a.ClientClass = class.String()
	var f *api.Frontend
	var d api.Decision
	if key := bpf.FrontendOf(e); key != (bpf.FrontendKey{}) {
		var s *api.Service
		if s, f = x.frontend(key); f == nil {
			return fmt.Errorf("the Service at %s changed meanwhile: try again", x.question.Destination)
		}
		d = x.setFrontend(s, f, class)
	}
	switch bpf.ConnectReason(e.Reason) {
	case bpf.ConnectProtocol:
		return x.leaves(class, fmt.Sprintf("passed unchanged: %s is served per packet", x.question.Protocol))
	case bpf.ConnectNoFrontend:
		if a.Verdict == service.Drop.String() {
			a.Rules, a.Why = []string{"R21"}, "dropped (EPERM): address of a ServiceCIDR that no Service has"
		} else {
			a.Why = "passed unchanged: no Service has this address and port"
		}
		return nil
	case bpf.ConnectOptedOut:
		if a.Why = "passed unchanged: the pod has opted out of the socket shortcut"; f == nil {
			return nil
		}
		return x.leaves(class, a.Why)
	case bpf.ConnectUDPOtherPort:
		return x.leaves(class, "passed unchanged: connect() of a UDP socket sends nothing")
	case bpf.ConnectSourceUnknown:
		return x.leaves(class, "passed unchanged: the verdict depends on the source, and an unbound socket has no source address yet")
	case bpf.ConnectMasqueraded:
		return x.leaves(class, "passed unchanged: packets of pods are masqueraded (--masquerade-all)")
	case bpf.ConnectSource: // the node reaches its own address from that address
		a.Rules, a.Backends = []string{"R25"}, nil
		a.Why = "dropped (EPERM): the node's own address is not in loadBalancerSourceRanges"
		return nil
	case bpf.ConnectNoBackend:
		a.Why = "rejected (ECONNREFUSED): a slot refers to a backend that is not in the tables; the agent repairs it"
		return nil
	}
	a.Rules = rulesOf(f, class, d, "")
	switch a.Verdict {
	case service.Reject.String():
		a.Why = "rejected (ECONNREFUSED): no endpoint, or no such port"
	case service.Drop.String():
		a.Why = "dropped (EPERM): traffic policy Local, and no endpoint on this node"
	case service.Pass.String():
		a.Why = "passed unchanged"
	default:
		a.Why = "the socket is connected to a backend"
		x.chosen(e, f, d)
	}
	return nil
}

// chosen sets the backend, unless the choice is random: another connect() may get a different one.
func (x *explainer) chosen(e *bpf.ConnectExplanation, f *api.Frontend, d api.Decision) {
	a := &x.answer
	if f.AffinitySeconds > 0 {
		a.Affinity = "new"
		if e.Affinity != 0 {
			a.Affinity = "kept"
		}
	}
	if e.Affinity == 0 && len(d.Backends) != 1 {
		return
	}
	for _, m := range d.Backends {
		if m.ID == e.Backend {
			a.Backend = &m
			a.Rewritten = &Ends{a.Original.Source, bpf.ConnectedTo(e), a.Original.Protocol}
		}
	}
}

// leaves explains a connect() that the socket programs pass: the tc program at the device decides.
func (x *explainer) leaves(class service.SourceClass, why string) error {
	x.answer.Verdict, x.answer.Why, x.answer.Backends = service.Pass.String(), why, nil
	from := 0
	if class == service.FromPod {
		routes, err := netlink.RouteGet(x.question.Source.Addr().AsSlice())
		if err != nil || len(routes) == 0 {
			return fmt.Errorf("the route to %s: %w", x.question.Source.Addr(), err)
		}
		from = routes[0].LinkIndex
		in, err := x.attachedAt(bpf.EdgeIngress, from)
		if err != nil {
			return err
		}
		if in != nil {
			x.leftToTC(why)
			return x.throughTC(in)
		}
	}
	device, err := x.outDevice()
	if err != nil || device == nil {
		return err
	}
	x.leftToTC(why)
	e, err := x.run(bpf.EdgeEgress, device, from)
	if err != nil {
		return err
	}
	return x.explained(e)
}

// leftToTC removes the verdict of the socket programs, because a tc program decides.
func (x *explainer) leftToTC(why string) {
	x.answer.EarlierPrograms = append(x.answer.EarlierPrograms, "connect: "+why)
	x.answer.Hook, x.answer.Frontend, x.answer.Service = "tc", nil, ""
}

// outDevice returns the output device of the route to the destination; nil if the edge is not attached to it.
func (x *explainer) outDevice() (*net.Interface, error) {
	routes, err := netlink.RouteGet(x.question.Destination.Addr().AsSlice())
	if err != nil || len(routes) == 0 {
		x.note("the node has no route to %s: the socket's packets are dropped", x.question.Destination.Addr())
		return nil, nil
	}
	device, err := x.attachedAt(bpf.EdgeEgress, routes[0].LinkIndex)
	if err == nil && device == nil {
		x.note("the socket's packets leave through a device without Beeline's programs, and pass unchanged")
	}
	return device, err
}

// attachedAt returns the device with an index; nil if the edge is not attached to the hook there.
func (x *explainer) attachedAt(hook bpf.EdgeHook, index int) (*net.Interface, error) {
	attached, err := bpf.EdgeAttachments(x.bpffs)
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

// networkOf returns the value of the longest matching prefix.
func networkOf(networks map[bpf.NetworkKey]bpf.Network, a netip.Addr) (kind bpf.Network) {
	longest := -1
	for key, k := range networks {
		if p := key.Prefix(); p.Contains(a) && p.Bits() > longest {
			longest, kind = p.Bits(), k
		}
	}
	return kind
}
