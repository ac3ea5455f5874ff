// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/service"
)

// anyPort is the source's where none is given: one that clients have.
const anyPort = 40000

// packet asks the edge's programs.
func (x *explainer) packet() error {
	own, err := ownAddress(x.question.Source.Addr())
	if err != nil {
		return err
	}
	if own {
		return wrong("%s is an address of this node: what its sockets meet is explained with --socket", x.question.Source.Addr())
	}
	device, xdp, err := x.device()
	if err != nil {
		return err
	}
	if xdp != nil {
		x.answer.Entry = "xdp"
		x.noteOthers(xdp.Chain)
		e, err := x.run(datapath.EdgeXDP, device, device.Index)
		if err != nil {
			return err
		}
		if datapath.ReasonName(e.Reason) != "to_tc" {
			return x.explained(e)
		}
		x.answer.Before = append(x.answer.Before, "xdp: "+Reasons["to_tc"])
	}
	return x.throughTC(device)
}

// throughTC is for a packet that tc meets at a device; and, if it is left alone there, on
// its way out.
func (x *explainer) throughTC(in *net.Interface) error {
	x.answer.Entry = "tc"
	e, err := x.run(datapath.EdgeIngress, in, in.Index)
	if err != nil {
		return err
	}
	if datapath.ReasonName(e.Reason) != "not_ours" {
		return x.explained(e)
	}
	var out *net.Interface
	if routes, err := netlink.RouteGet(x.question.Destination.Addr().AsSlice()); err == nil && len(routes) > 0 {
		if out, err = x.attachedAt(datapath.EdgeEgress, routes[0].LinkIndex); err != nil {
			return err
		}
	}
	if out == nil {
		return x.explained(e)
	}
	leaving, err := x.run(datapath.EdgeEgress, out, in.Index)
	if err != nil {
		return err
	}
	if leaving.Done == 0 { // of what others send nothing is met there
		x.answer.Device = in.Name
		return x.explained(e)
	}
	x.answer.Before = append(x.answer.Before, "tc at "+in.Name+": "+Reasons["not_ours"])
	return x.explained(leaving)
}

// run runs the program of a hook on the packet.
func (x *explainer) run(hook datapath.EdgeHook, device *net.Interface, from int) (*datapath.Explanation, error) {
	dry, err := datapath.OpenDryRun(x.bpffs, hook)
	if err != nil {
		return nil, err
	}
	defer dry.Close()
	if dry.Other {
		x.note("the program of %s that is attached is of another version of Beeline than this command, and may decide otherwise", hook)
	}
	return dry.Run(device.Index, from, x.frame(device))
}

// frame is the packet for a device, or of it.
func (x *explainer) frame(device *net.Interface) []byte {
	asks := &x.answer.Asks
	if asks.Source.Port() == 0 && !isICMP(asks.Protocol) {
		asks.Source = netip.AddrPortFrom(asks.Source.Addr(), anyPort)
		x.note("from source port %d, since none was given: another may reach another backend", anyPort)
	}
	x.answer.Device = device.Name
	return frameOf(*asks, device.HardwareAddr)
}

// noteOthers names the XDP programs that see a packet before Beeline does.
func (x *explainer) noteOthers(chain []datapath.ChainProgram) {
	for _, p := range chain {
		if p.Own {
			return
		}
		x.note("%s (program %d) runs before Beeline at this device, and may drop the packet", p.Name, p.ID)
	}
}

// device is where the packet comes in, and what has XDP meet it first, if anything.
func (x *explainer) device() (device *net.Interface, xdp *datapath.EdgeAttachment, err error) {
	attached, err := datapath.EdgeAttachments(x.bpffs)
	if err != nil {
		return nil, nil, err
	}
	byXDP := map[int]*datapath.EdgeAttachment{}
	var names []string
	var devices []*net.Interface
	for _, a := range attached {
		if a.Detached {
			continue
		}
		if a.Hook == datapath.EdgeXDP {
			byXDP[a.Device] = &a
		}
		if a.Hook != datapath.EdgeIngress {
			continue
		}
		if d, err := net.InterfaceByIndex(a.Device); err == nil {
			devices, names = append(devices, d), append(names, d.Name)
		}
	}
	if len(devices) == 0 {
		return nil, nil, wrong("clients are served at no device of this network namespace by what is pinned under %s (--edge-mode off?): name the agent's --bpffs, and run this where the agent runs", x.bpffs)
	}
	if name := x.question.Device; name != "" {
		i := slices.Index(names, name)
		if i < 0 {
			return nil, nil, wrong("--device %s: clients are not served there, but at %s", name, strings.Join(names, ", "))
		}
		return devices[i], byXDP[devices[i].Index], nil
	}
	if len(devices) == 1 {
		return devices[0], byXDP[devices[0].Index], nil
	}
	routes, err := netlink.RouteGet(x.question.Source.Addr().AsSlice())
	if err == nil && len(routes) > 0 {
		for _, d := range devices {
			if d.Index == routes[0].LinkIndex {
				return d, byXDP[d.Index], nil
			}
		}
	}
	return nil, nil, wrong("the route to %s leads to none of the devices at which clients are served: say with --device which of %s its packets come in by",
		x.question.Source.Addr(), strings.Join(names, ", "))
}

// explained puts what the programs tell into words.
func (x *explainer) explained(e *datapath.Explanation) error {
	a := &x.answer
	if e.Done == 0 {
		a.Verdict, a.Why = service.Pass.String(), "left alone without a look"
		return nil
	}
	a.Reason = datapath.ReasonName(e.Reason)
	a.Why, a.Verdict = Reasons[a.Reason], verdictOf(a.Reason)
	class := service.SourceClass(e.Class)
	var d Decision
	s, f := x.frontend(e.Key())
	if f != nil {
		d = x.asked(s, f, class)
	}
	a.Rules = rulesOf(f, class, d, a.Reason)
	if e.Known != 0 {
		x.known(e)
	}
	if a.Verdict != service.Balance.String() {
		return nil
	}
	a.Becomes = &Ends{e.Becomes.From(), e.Becomes.To(), a.Asks.Protocol}
	local := e.Known != 0 && e.Flags&uint8(datapath.TrackLocal) != 0
	a.Backend = &Member{ID: e.Backend, Address: a.Becomes.Destination.String()}
	for _, m := range a.Backends {
		if m.ID == e.Backend {
			a.Backend, local = &m, m.Local
		}
	}
	a.Backend.Local = local
	a.Encapsulated = encapsulation(e)
	if !local && e.Device != 0 {
		a.Out = &Hop{Device: deviceName(e.Device), NextHop: e.Next()}
		if e.Mac != [6]uint8{} {
			a.Out.MAC = net.HardwareAddr(e.Mac[:]).String()
		}
	}
	if f == nil || f.AffinitySeconds == 0 {
		return nil
	}
	a.Affinity = "new"
	kept, err := x.remembered(f, d, datapath.AddressFrom(a.Asks.Source.Addr()))
	if kept == e.Backend && kept != 0 {
		a.Affinity = "kept"
	}
	return err
}

func encapsulation(e *datapath.Explanation) *Encapsulation {
	how, direct := dsrNames[datapath.DSR(e.Dsr)]
	if !direct {
		return nil
	}
	c := &Encapsulation{DSR: how}
	if datapath.DSR(e.Dsr) != datapath.DSROpt {
		c.Source, c.Destination = datapath.Address(e.OuterSource).Addr(), datapath.Address(e.OuterDestination).Addr()
	}
	return c
}

// known is for a packet of a flow that has records: these decide, not the tables.
func (x *explainer) known(e *datapath.Explanation) {
	x.answer.Flow = trackStates[datapath.TrackState(e.State)]
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
	case "new", "adopted", "established", "reply", "fragmented", "untracked":
		return service.Balance.String()
	case "rejected":
		return service.Reject.String()
	case "echo":
		return service.Answer.String()
	}
	if strings.HasPrefix(Reasons[reason], "dropped") {
		return service.Drop.String()
	}
	return service.Pass.String()
}

func deviceName(index uint32) string {
	if d, err := net.InterfaceByIndex(int(index)); err == nil {
		return d.Name
	}
	return fmt.Sprintf("(index %d)", index)
}
