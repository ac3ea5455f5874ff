// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/ti-mo/conntrack"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf/settable"
	"beeline.io/beeline/internal/conntrack/kernelct"
	"beeline.io/beeline/internal/node/flow"
	"beeline.io/beeline/internal/node/netdev"
	"beeline.io/beeline/internal/shortcut/offload/flowtable"
)

// List returns the TCP and UDP flows of the kernel's conntrack that this node forwards, in the network namespace of
// the caller.
func (o *Offload) List() ([]api.OffloadFlow, error) {
	c, err := conntrack.Dial(nil)
	if err != nil {
		return nil, fmt.Errorf("open the kernel's conntrack: %w", err)
	}
	defer c.Close()
	tracked, err := c.Dump(nil)
	if err != nil {
		return nil, fmt.Errorf("list the kernel's conntrack: %w", err)
	}
	own, err := ownAddresses()
	if err != nil {
		return nil, err
	}
	directions := map[flow.Tuple]api.FlowDirection{}
	if o.flows != nil {
		directions = o.flows.directions()
	}
	var all []api.OffloadFlow
	for i := range tracked {
		t := &tracked[i]
		there, back := kernelct.FlowOf(&t.TupleOrig), kernelct.FlowOf(&t.TupleReply)
		if _, known := protocolNames[there.Protocol]; !known || own[there.Source.Addr()] || own[back.Source.Addr()] {
			continue
		}
		all = append(all, api.OffloadFlow{
			Protocol: protocolNames[there.Protocol],
			Client:   there.Source, Address: there.Destination, SeenAs: back.Destination, Backend: back.Source, State: stateOf(t),
			FromClient: direction(&t.CountersOrig, t.Status), ToClient: direction(&t.CountersReply, t.Status),
		})
		o.addOwn(&all[len(all)-1], t, directions)
	}
	slices.SortFunc(all, func(a, b api.OffloadFlow) int {
		return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), a.Client.Compare(b.Client), a.Address.Compare(b.Address))
	})
	return all, nil
}

var protocolNames = map[uint8]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp"}

// tcpStates are the states of TCP (enum tcp_conntrack of linux/netfilter/nf_conntrack_tcp.h).
var tcpStates = []string{"NONE", "SYN_SENT", "SYN_RECV", "ESTABLISHED", "FIN_WAIT", "CLOSE_WAIT", "LAST_ACK", "TIME_WAIT", "CLOSE", "SYN_SENT2"}

func stateOf(t *conntrack.Flow) string {
	if tcp := t.ProtoInfo.TCP; tcp != nil && int(tcp.State) < len(tcpStates) {
		return tcpStates[tcp.State]
	}
	switch {
	case t.Status.Assured():
		return "ASSURED"
	case t.Status.SeenReply():
		return "REPLIED"
	}
	return "UNREPLIED"
}

// direction is what conntrack knows of one direction of a flow.
func direction(counter *conntrack.Counter, status conntrack.Status) api.FlowDirection {
	if path := offloaded(status); path != "" {
		return api.FlowDirection{Path: path, Packets: counter.Packets, Bytes: counter.Bytes}
	}
	return api.FlowDirection{Path: api.PathSlow}
}

// offloaded is the flowtable that a flow is in; empty: none.
func offloaded(status conntrack.Status) api.FlowPath {
	switch {
	case status&flowtable.StatusHardware != 0:
		return api.PathHardware
	case status&conntrack.StatusOffload != 0:
		return api.PathFlowtable
	}
	return ""
}

// addOwn adds what flow offload knows of a flow in no flowtable: of the cache by direction; a flowtable keeps no list
// of the flows that it does not take.
func (o *Offload) addOwn(s *api.OffloadFlow, t *conntrack.Flow, cached map[flow.Tuple]api.FlowDirection) {
	if offloaded(t.Status) != "" {
		return
	}
	there, back := kernelct.FlowOf(&t.TupleOrig), kernelct.FlowOf(&t.TupleReply)
	if o.usesFlowtable() {
		// Its devices are not known: they count as any.
		if reason := o.refusal(flow.Flow{In: there, Out: back.Reverse(), Helper: t.Helper.Name}); reason != "" {
			s.FromClient = api.FlowDirection{Path: api.PathRefused, Reason: reason}
			s.ToClient = s.FromClient
		}
		return
	}
	if d, ok := cached[there]; ok {
		s.FromClient = d
	}
	if d, ok := cached[back]; ok {
		s.ToClient = d
	}
}

func (o *Offload) usesFlowtable() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.provider == Flowtable || o.provider == Hardware
}

// offloadedFlow returns the flowtable of a flow whose packets arrive with a tuple, and the tuple with which they leave;
// an empty path if it is in none.
func offloadedFlow(in flow.Tuple) (path api.FlowPath, out flow.Tuple, err error) {
	c, err := conntrack.Dial(nil)
	if err != nil {
		return "", out, fmt.Errorf("open the kernel's conntrack: %w", err)
	}
	defer c.Close()
	t, err := c.Get(conntrack.Flow{TupleOrig: conntrackTuple(in)})
	if errors.Is(err, unix.ENOENT) {
		return "", out, nil
	} else if err != nil {
		return "", out, fmt.Errorf("look up a flow in the kernel's conntrack: %w", err)
	}
	if out = kernelct.FlowOf(&t.TupleOrig); out == in {
		out = kernelct.FlowOf(&t.TupleReply)
	}
	return offloaded(t.Status), out.Reverse(), nil
}

func conntrackTuple(t flow.Tuple) conntrack.Tuple {
	return conntrack.Tuple{
		IP:    conntrack.IPTuple{SourceAddress: t.Source.Addr(), DestinationAddress: t.Destination.Addr()},
		Proto: conntrack.ProtoTuple{Protocol: t.Protocol, SourcePort: t.Source.Port(), DestinationPort: t.Destination.Port()},
	}
}

// directions are those in the flow cache, and those that were refused, by the tuple with which their packets arrive.
func (f *FlowCache) directions() map[flow.Tuple]api.FlowDirection {
	f.mu.Lock()
	defer f.mu.Unlock()
	names := map[int]string{}
	name := func(index int) string {
		if _, ok := names[index]; !ok {
			names[index] = fmt.Sprint("device ", index)
			if i, err := net.InterfaceByIndex(index); err == nil {
				names[index] = i.Name
			}
		}
		return names[index]
	}
	all := map[flow.Tuple]api.FlowDirection{}
	for one, why := range f.refused {
		all[one.In] = api.FlowDirection{Path: api.PathRefused, Reason: why.reason, InDevice: name(one.InDevice), OutDevice: name(one.OutDevice)}
	}
	f.cache.each(func(e *Entry) {
		if !f.cache.active(e) {
			return
		}
		one := flowOf(e)
		all[one.In] = api.FlowDirection{
			Path: api.PathCache, InDevice: name(one.InDevice), OutDevice: name(one.OutDevice), Packets: e.Packets, Bytes: e.Bytes,
			IdleSeconds: float64(max(0, int32(settable.Tick()-e.LastSeen))) * float64(1<<20) / 1e9,
		}
	})
	return all
}

// ownAddresses are those of this node.
func ownAddresses() (map[netip.Addr]bool, error) {
	list, err := netdev.Addresses()
	own := map[netip.Addr]bool{}
	for _, a := range list {
		own[a.Addr] = true
	}
	return own, err
}

// findCached returns the flows of the cache whose packets arrive with a tuple, by whatever device.
func findCached(t *Tables, tuple flow.Tuple) (found []flow.Flow) {
	c := newCacheTable(t, nil)
	c.each(func(e *Entry) {
		if one := flowOf(e); one.In == tuple && c.active(e) {
			found = append(found, one)
		}
	})
	return found
}
