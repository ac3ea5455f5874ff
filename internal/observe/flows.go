// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"cmp"
	"net/netip"
	"slices"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/edge"
	"beeline.io/beeline/internal/nearest"
	"beeline.io/beeline/internal/service"
	"beeline.io/beeline/internal/sync"
)

// Flow is a flow of a client outside of the cluster.
type Flow struct {
	Protocol service.Protocol `json:"protocol"`
	Client   netip.AddrPort   `json:"client"`
	// Address is what the client asks, Service whose that is: namespace/name, and
	// Port the name of its port.
	Address netip.AddrPort `json:"address"`
	Service string         `json:"service"`
	Port    string         `json:"port,omitempty"`
	Backend netip.AddrPort `json:"backend"`
	// Via is what the backend sees in place of the client: an address of this node;
	// not valid if it sees the client.
	Via netip.AddrPort `json:"via,omitzero"`
	// DSR is how packets get to the backend that answers the client itself: ipip, geneve or
	// opt; empty: it does not. What it sends, this node does not see.
	DSR   string `json:"dsr,omitempty"`
	State string `json:"state"` // new, answered, established, closing or closed
	// IdleSeconds is how long ago either side was heard.
	IdleSeconds float64 `json:"idleSeconds"`
	Sent        Traffic `json:"sent"`     // by the client
	Received    Traffic `json:"received"` // by the client
}

// Traffic counts packets, and their bytes from the IP header on.
type Traffic struct {
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

var trackStates = map[datapath.TrackState]string{
	datapath.TrackNew: "new", datapath.TrackAnswered: "answered", datapath.TrackEstablished: "established",
	datapath.TrackClosing: "closing", datapath.TrackClosed: "closed",
}

var dsrNames = map[datapath.DSR]string{
	datapath.DSRIPIP: "ipip", datapath.DSRGeneve: "geneve", datapath.DSROpt: "opt",
}

// flowRecords are the two records of a flow; either may be nil.
type flowRecords struct{ client, reply *datapath.Track }

// ReadFlows reads all flows, sorted by service, client and address. One that begins
// or ends meanwhile may be missing.
func ReadFlows(flows *datapath.Flows, names map[uint32]datapath.ServiceName) ([]Flow, error) {
	all := []Flow{}
	for _, table := range []datapath.FlowTable{flows.HalfOpen, flows.Tracks} {
		records := map[datapath.Tuple]flowRecords{} // by what the client sends
		err := table.Walk(func(key datapath.Tuple, t *datapath.Track) bool {
			copied := *t
			if t.IsReply() {
				asked := t.Becomes.Reverse()
				records[asked] = flowRecords{records[asked].client, turned(key, &copied)}
			} else {
				records[key] = flowRecords{&copied, records[key].reply}
			}
			return true
		})
		if err != nil {
			return nil, err
		}
		for asked, r := range records {
			all = append(all, r.flow(asked, names))
		}
	}
	slices.SortFunc(all, compareFlows)
	return all, nil
}

// turned is a reply's record with what the client's packets become.
func turned(key datapath.Tuple, t *datapath.Track) *datapath.Track {
	t.Becomes = key.Reverse()
	return t
}

func (r flowRecords) flow(asked datapath.Tuple, names map[uint32]datapath.ServiceName) Flow {
	one, other := r.client, r.reply
	if one == nil {
		one, other = r.reply, nil
	}
	f := Flow{
		Protocol: service.Protocol(asked.Protocol), Client: asked.From(), Address: asked.To(),
		Backend:     one.Becomes.To(),
		State:       trackStates[edge.StateOf(one, other)],
		IdleSeconds: edge.Idle(one, other).Seconds(),
	}
	if one.IsAlone() {
		f.DSR = dsrNames[datapath.DSR(one.Dsr)]
	} else if !one.IsLocal() {
		f.Via = one.Becomes.From()
	}
	if name, ok := names[one.Service]; ok {
		port := sync.PortOf(name)
		f.Service, f.Port = port.Owner.Namespace+"/"+port.Owner.Name, port.Name
	}
	if r.client != nil {
		f.Sent = Traffic{r.client.Packets, r.client.Bytes}
	}
	if r.reply != nil {
		f.Received = Traffic{r.reply.Packets, r.reply.Bytes}
	}
	return f
}

func compareFlows(a, b Flow) int {
	return cmp.Or(cmp.Compare(a.Service, b.Service), a.Client.Compare(b.Client), a.Address.Compare(b.Address),
		cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.State, b.State))
}

// FlushFlows has the flows forgotten of the services with these ids, and of these backends, nil for all of
// them. It returns how many there were.
func FlushFlows(flows *datapath.Flows, of func(id uint32) bool, backend func(netip.AddrPort) bool) (flushed uint64, err error) {
	for _, table := range []datapath.FlowTable{flows.HalfOpen, flows.Tracks} {
		n, err := edge.End(table, func(key datapath.Tuple, t *datapath.Track) bool {
			return of(t.Service) && (backend == nil || backend(backendOf(key, t)))
		})
		flushed += n
		if err != nil {
			return flushed, err
		}
	}
	return flushed, nil
}

// backendOf is the backend of the flow that a record is of.
func backendOf(key datapath.Tuple, t *datapath.Track) netip.AddrPort {
	if t.IsReply() {
		return key.From()
	}
	return t.Becomes.To()
}

// KnownService is a *QuestionError if no service has this namespace/name.
func KnownService(names map[uint32]datapath.ServiceName, name string) error {
	var known []string
	for id := range names {
		if owner := sync.PortOf(names[id]).Owner; !slices.Contains(known, owner.Namespace+"/"+owner.Name) {
			known = append(known, owner.Namespace+"/"+owner.Name)
		}
	}
	if slices.Contains(known, name) {
		return nil
	}
	return wrong("--service %s: no such Service is in the tables%s; `beeline service list` shows those that are", name, nearest.Question(name, known))
}

// NamedService is a filter of service ids by namespace/name; empty: all.
func NamedService(names map[uint32]datapath.ServiceName, name string) func(id uint32) bool {
	return func(id uint32) bool {
		owner := sync.PortOf(names[id]).Owner
		return name == "" || owner.Namespace+"/"+owner.Name == name
	}
}
