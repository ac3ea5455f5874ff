// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/xdpdispatch"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/conntrack"
)

// anyPort is the source port, an ephemeral one, if none is given.
const anyPort = 40000

// packet test-runs the edge's programs.
func (x *explainer) packet() error {
	own, err := ownAddress(x.question.Source.Addr())
	if err != nil {
		return err
	}
	if own {
		return api.BadRequest("%s is an address of this node: use `beeline explain connect` for its sockets", x.question.Source.Addr())
	}
	device, xdp, err := x.device()
	if err != nil {
		return err
	}
	if xdp != nil {
		x.answer.Hook = "xdp"
		x.noteOthers(xdp.Chain)
		e, err := x.run(bpf.EdgeXDP, device, device.Index)
		if err != nil {
			return err
		}
		if bpf.ReasonName(e.Reason) != "to_tc" {
			return x.explained(e)
		}
		x.answer.EarlierPrograms = append(x.answer.EarlierPrograms, "xdp: "+api.Reasons["to_tc"])
	}
	return x.throughTC(device)
}

// throughTC runs the tc program of the input device and, if it passes the packet, that of the output device.
func (x *explainer) throughTC(in *net.Interface) error {
	x.answer.Hook = "tc"
	e, err := x.run(bpf.EdgeIngress, in, in.Index)
	if err != nil {
		return err
	}
	if bpf.ReasonName(e.Reason) != "not_service" {
		return x.explained(e)
	}
	var out *net.Interface
	if routes, err := netlink.RouteGet(x.question.Destination.Addr().AsSlice()); err == nil && len(routes) > 0 {
		if out, err = x.attachedAt(bpf.EdgeEgress, routes[0].LinkIndex); err != nil {
			return err
		}
	}
	if out == nil {
		return x.explained(e)
	}
	leaving, err := x.run(bpf.EdgeEgress, out, in.Index)
	if err != nil {
		return err
	}
	if leaving.Done == 0 { // the egress program handles only packets of local sources
		x.answer.Device = in.Name
		return x.explained(e)
	}
	x.answer.EarlierPrograms = append(x.answer.EarlierPrograms, "tc at "+in.Name+": "+api.Reasons["not_service"])
	return x.explained(leaving)
}

// run test-runs the program of a hook on the packet.
func (x *explainer) run(hook bpf.EdgeHook, device *net.Interface, from int) (*bpf.Explanation, error) {
	dry, err := bpf.OpenDryRun(x.bpffs, hook)
	if err != nil {
		return nil, err
	}
	defer dry.Close()
	if dry.Other {
		x.note("the attached program of %s is of another version of Beeline than this command, and may decide differently", hook)
	}
	return dry.Run(device.Index, from, x.frame(device))
}

// frame builds the packet as the device receives it.
func (x *explainer) frame(device *net.Interface) []byte {
	asks := &x.answer.Original
	if asks.Source.Port() == 0 && !isICMP(asks.Protocol) {
		asks.Source = netip.AddrPortFrom(asks.Source.Addr(), anyPort)
		x.note("the source port is %d, because none was given; another port may reach another backend", anyPort)
	}
	x.answer.Device = device.Name
	return frameOf(*asks, device.HardwareAddr)
}

// noteOthers names the XDP programs that run before Beeline's.
func (x *explainer) noteOthers(chain []xdpdispatch.ChainProgram) {
	for _, p := range chain {
		if p.Own {
			return
		}
		x.note("%s (program %d) runs before Beeline at this device, and may drop the packet", p.Name, p.ID)
	}
}

// device returns the device that receives the packet, and its XDP program if it has one.
func (x *explainer) device() (device *net.Interface, xdp *bpf.EdgeAttachment, err error) {
	attached, err := bpf.EdgeAttachments(x.bpffs)
	if err != nil {
		return nil, nil, err
	}
	byXDP := map[int]*bpf.EdgeAttachment{}
	var names []string
	var devices []*net.Interface
	for _, a := range attached {
		if a.Detached {
			continue
		}
		if a.Hook == bpf.EdgeXDP {
			byXDP[a.Device] = &a
		}
		if a.Hook != bpf.EdgeIngress {
			continue
		}
		if d, err := net.InterfaceByIndex(a.Device); err == nil {
			devices, names = append(devices, d), append(names, d.Name)
		}
	}
	if len(devices) == 0 {
		x.unattached = true
		return nil, nil, api.BadRequest("the programs pinned under %s are attached to no device of this network namespace (--edge-mode=off?): give the agent's --pins, and run this command in the agent's network namespace", x.bpffs)
	}
	if name := x.question.Device; name != "" {
		i := slices.Index(names, name)
		if i < 0 {
			return nil, nil, api.BadRequest("--device %s: clients are not served at this device; choose from %s", name, strings.Join(names, ", "))
		}
		return devices[i], byXDP[devices[i].Index], nil
	}
	routes, err := netlink.RouteGet(x.question.Source.Addr().AsSlice())
	if err != nil || len(routes) == 0 {
		if len(devices) == 1 {
			return devices[0], byXDP[devices[0].Index], nil
		}
		return nil, nil, api.BadRequest("there is no route to %s: set --device to the device that receives its packets, one of %s", x.question.Source.Addr(), strings.Join(names, ", "))
	}
	for _, d := range devices {
		if d.Index == routes[0].LinkIndex {
			return d, byXDP[d.Index], nil
		}
	}
	return nil, nil, api.BadRequest("the route to %s leads to %s, where clients are not served: add the device to the agent's --devices, use `beeline explain connect` for a pod of this node, or set --device to the device that receives its packets, one of %s",
		x.question.Source.Addr(), DeviceName(uint32(routes[0].LinkIndex)), strings.Join(names, ", "))
}

// explained converts the result of the test run.
func (x *explainer) explained(e *bpf.Explanation) error {
	a := &x.answer
	if e.Done == 0 {
		a.Verdict, a.Why = service.Pass.String(), "passed unchanged without a look-up"
		return nil
	}
	a.Reason = bpf.ReasonName(e.Reason)
	a.Why, a.Verdict = api.Reasons[a.Reason], verdictOf(a.Reason)
	class := service.SourceClass(e.Class)
	var d api.Decision
	s, f := x.frontend(bpf.KeyOf(e))
	if f != nil {
		d = x.setFrontend(s, f, class)
	}
	d.Masquerade = d.Masquerade && e.Dsr == 0 // by DSR the client keeps its address
	a.Rules = rulesOf(f, class, d, a.Reason)
	if e.Known != 0 {
		x.known(e)
	}
	if a.Verdict != service.Balance.String() {
		return nil
	}
	a.Rewritten = &Ends{e.Xlate.From(), e.Xlate.To(), a.Original.Protocol}
	local := e.Known != 0 && e.Flags&uint8(bpf.ConntrackLocal) != 0
	a.Backend = &api.Member{ID: e.Backend, Address: a.Rewritten.Destination.String()}
	for _, m := range a.Backends {
		if m.ID == e.Backend {
			a.Backend, local = &m, m.Local
		}
	}
	a.Backend.Local = local
	a.Encapsulated = encapsulation(e)
	if !local && e.Device != 0 {
		a.LeavesBy = &Hop{Device: DeviceName(e.Device), NextHop: bpf.Address(e.NextHop).Addr()}
		if e.Mac != [6]uint8{} {
			a.LeavesBy.MAC = net.HardwareAddr(e.Mac[:]).String()
		}
	}
	if f == nil || f.AffinitySeconds == 0 {
		return nil
	}
	a.Affinity = "new"
	kept, err := x.remembered(f, d, bpf.AddressFrom(a.Original.Source.Addr()))
	if kept == e.Backend && kept != 0 {
		a.Affinity = "kept"
	}
	return err
}

func encapsulation(e *bpf.Explanation) *Encapsulation {
	how, direct := conntrack.DSRNames[bpf.DSR(e.Dsr)]
	if !direct {
		return nil
	}
	c := &Encapsulation{DSR: how}
	if bpf.DSR(e.Dsr) != bpf.DSROpt {
		c.Source, c.Destination = bpf.Address(e.OuterSource).Addr(), bpf.Address(e.OuterDestination).Addr()
	}
	return c
}

// known explains a packet of a flow with conntrack entries, which take precedence over the Services' tables.
func (x *explainer) known(e *bpf.Explanation) {
	x.answer.FlowState = conntrack.StateNames[conntrack.State(e.State)]
	for i := range x.tables.Services {
		s := &x.tables.Services[i]
		for j := range s.Frontends {
			if s.Frontends[j].ServiceID == e.Service {
				x.answer.Service = s.Namespace + "/" + s.Name
			}
		}
	}
}

func verdictOf(reason string) string {
	switch reason {
	case "new", "recovered", "established", "reply", "fragmented", "untracked":
		return service.Balance.String()
	case "rejected":
		return service.Reject.String()
	case "echo":
		return service.Answer.String()
	}
	if api.Dropped(reason) {
		return service.Drop.String()
	}
	return service.Pass.String()
}

// DeviceName returns the name of a device, or its index if there is none.
func DeviceName(index uint32) string {
	if d, err := net.InterfaceByIndex(int(index)); err == nil {
		return d.Name
	}
	return fmt.Sprintf("(index %d)", index)
}
