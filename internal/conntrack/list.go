// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"cmp"
	"net/netip"
	"slices"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
)

// Flow is a flow through the edge.
type Flow struct {
	Protocol service.Protocol `json:"protocol"`
	Client   netip.AddrPort   `json:"client"`
	// Address is the address that the client sends to, Service the Service of that address as
	// namespace/name, and Port the name of its port.
	Address netip.AddrPort `json:"address"`
	Service string         `json:"service"`
	Port    string         `json:"port,omitempty"`
	Backend netip.AddrPort `json:"backend"`
	// SeenAs is the address and SNAT port of this node that the backend sees in place of the client;
	// invalid if the backend sees the client.
	SeenAs netip.AddrPort `json:"seenAs,omitzero"`
	// DSR is how packets are sent to a backend that replies to the client directly: ipip, geneve or
	// opt; empty without DSR. With DSR this node does not see the replies.
	DSR   string `json:"dsr,omitempty"`
	State string `json:"state"` // new, answered, established, closing or closed
	// IdleSeconds is the time since the last packet of either side.
	IdleSeconds float64 `json:"idleSeconds"`
	FromClient  Traffic `json:"fromClient"` // by the client
	ToClient    Traffic `json:"toClient"`   // by the client
}

// Traffic counts packets and bytes; bytes include the IP header.
type Traffic struct {
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// StateNames are the states as users see them.
var StateNames = map[State]string{
	bpf.ConntrackNew: "new", bpf.ConntrackReplied: "answered", bpf.ConntrackEstablished: "established",
	bpf.ConntrackClosing: "closing", bpf.ConntrackClosed: "closed",
}

// DSRNames are the kinds of DSR as users see them.
var DSRNames = map[bpf.DSR]string{
	bpf.DSRIPIP: "ipip", bpf.DSRGeneve: "geneve", bpf.DSROpt: "opt",
}

// flowEntries are the two entries of a flow; either may be nil.
type flowEntries struct{ client, reply *Entry }

// PortName returns the Service of a service port as namespace/name, and the name of the port; both are
// empty if the id is unknown.
type PortName func(id uint32) (owner, port string)

// List returns all flows, sorted by service, client and address. A flow that begins or ends during the walk
// may be missing.
func List(tables *Tables, name PortName) ([]Flow, error) {
	all := []Flow{}
	for _, table := range tables.All() {
		entries := map[Tuple]flowEntries{} // by the key of the client's entry
		err := table.Walk(func(key Tuple, t *Entry) bool {
			copied := *t
			if t.IsReply() {
				asked := t.Xlate.Reverse()
				entries[asked] = flowEntries{entries[asked].client, fromReply(key, &copied)}
			} else {
				entries[key] = flowEntries{&copied, entries[key].reply}
			}
			return true
		})
		if err != nil {
			return nil, err
		}
		for asked, r := range entries {
			all = append(all, r.flow(asked, name))
		}
	}
	slices.SortFunc(all, compareFlows)
	return all, nil
}

// fromReply turns a reply's entry into one that translates the client's packets.
func fromReply(key Tuple, t *Entry) *Entry {
	t.Xlate = key.Reverse()
	return t
}

func (r flowEntries) flow(asked Tuple, name PortName) Flow {
	one, other := r.client, r.reply
	if one == nil {
		one, other = r.reply, nil
	}
	f := Flow{
		Protocol: service.Protocol(asked.Protocol), Client: asked.From(), Address: asked.To(),
		Backend:     one.Xlate.To(),
		State:       StateNames[StateOf(one, other)],
		IdleSeconds: Idle(one, other).Seconds(),
	}
	if one.IsOneSided() {
		f.DSR = DSRNames[bpf.DSR(one.Dsr)]
	} else if !one.IsLocal() {
		f.SeenAs = one.Xlate.From()
	}
	f.Service, f.Port = name(one.Lb.Service)
	if r.client != nil {
		f.FromClient = Traffic{r.client.Packets, r.client.Bytes}
	}
	if r.reply != nil {
		f.ToClient = Traffic{r.reply.Packets, r.reply.Bytes}
	}
	return f
}

func compareFlows(a, b Flow) int {
	return cmp.Or(cmp.Compare(a.Service, b.Service), a.Client.Compare(b.Client), a.Address.Compare(b.Address),
		cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.State, b.State))
}

// Flush deletes flows and returns their number: those of services for whose ids of returns true and of
// backends for which backend returns true; a nil backend selects all.
func Flush(tables *Tables, of func(id uint32) bool, backend func(netip.AddrPort) bool) (uint64, error) {
	return DeleteFlows(tables, func(key Tuple, t *Entry) bool {
		return of(t.Lb.Service) && (backend == nil || backend(t.Connection(key).Backend))
	}, func() error { return nil })
}
