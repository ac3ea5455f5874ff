// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	gosync "sync"
	"time"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/nearest"
	"beeline.io/beeline/internal/service"
	"beeline.io/beeline/internal/sync"
)

// Event is what the edge did with a packet: a new flow, a refusal or a drop.
type Event struct {
	Time time.Time `json:"time"`
	// Entry is where the packet was met: xdp or tc.
	Entry  string `json:"entry"`
	Device string `json:"device"`
	// Reason is one of Reasons, and Why the same in words.
	Reason string `json:"reason"`
	Why    string `json:"why"`
	// Service is namespace/name, empty for none; Port is the name of its port.
	Service  string           `json:"service,omitempty"`
	Port     string           `json:"port,omitempty"`
	Protocol service.Protocol `json:"protocol"`
	Client   netip.AddrPort   `json:"client"`
	Address  netip.AddrPort   `json:"address"`
	// Backend is where a new flow goes, and Via what the backend sees in place of the
	// client, if that is another.
	Backend netip.AddrPort `json:"backend,omitzero"`
	Via     netip.AddrPort `json:"via,omitzero"`
	Length  uint32         `json:"length"` // in bytes, from the IP header on
}

// Notice is an element of a stream of events.
type Notice struct {
	Event *Event `json:"event,omitempty"`
	// Lost is how many events could not be told since the notice before.
	Lost uint64 `json:"lost,omitempty"`
}

// Reasons in words, by their names. Those of an Event are new, adopted, rejected and
// drop_*.
var Reasons = map[string]string{
	"not_ours":        "left alone: no Service's and no flow's",
	"established":     "of a known flow",
	"reply":           "of a known flow, from the backend",
	"new":             "new flow",
	"adopted":         "flow taken up again: one of its records had been lost",
	"untracked":       "DSR: to the backend that every balancer chooses for the flow, without a record",
	"icmp":            "ICMP error about a packet of a flow",
	"rejected":        "refused: no endpoint, or no such port",
	"echo":            "answered: ICMP echo request",
	"drop_policy":     "dropped: traffic policy Local, and no endpoint on this node",
	"drop_source":     "dropped: source not in loadBalancerSourceRanges",
	"drop_unused":     "dropped: address of a ServiceCIDR that no Service has",
	"drop_no_backend": "dropped: the tables are damaged, nothing is behind a slot",
	"drop_no_route":   "dropped: no route, or no hop left",
	"drop_forwarding": "dropped: the kernel forwards nothing that comes by this device (sysctl net.ipv4.ip_forward, of IPv6 net.ipv6.conf.all.forwarding)",
	"drop_no_address": "dropped: the device has no address to send in the node's name",
	"drop_no_port":    "dropped: no free SNAT port (--snat-ports); of SCTP, another client's flow has the port that this one comes from",
	"drop_sctp_port":  "dropped: the backend has another port than was asked, and ports of SCTP are never translated",
	"drop_no_record":  "dropped: the flow could not be stored (--max-flows)",
	"drop_spoofed":    "dropped: encapsulated for a backend of this node, and not by a node or one of --dsr-balancers",
	"drop_not_here":   "dropped: encapsulated for a backend that the Service does not have on this node",
	"drop_fragment":   "dropped: a fragment for a Service whose first one has not been seen, or of an ICMP echo request",
	"drop_invalid":    "dropped: TCP that begins no connection and belongs to none that is known (RST, FIN, SYN+ACK or no flag)",
	"drop_malformed":  "left alone: headers that contradict themselves, or a source that no packet has",
	"drop_fault":      "dropped: the packet could not be changed",
	"drop_hops":       "dropped: its last hop (answered with ICMP time exceeded)",
	"drop_too_big":    "dropped: too big for the next hop (answered with ICMP, unless it has to be fragmented and cannot be)",
	"drop_rate":       "dropped: an ICMP error was due, and there have been too many",
	"drop_redirect":   "dropped: an ICMP redirect about a packet of a flow",
	"fragmented":      "too big for the next hop, and cut apart; the fragments are counted as they come again",
	"to_tc":           "left by XDP to tc: another device, a next hop that is not known yet, a packet to be cut apart, or no room for an answer",
}

// Filter says which events are wanted; zero: all.
type Filter struct {
	Drops   bool   // what was not served: refusals and drops
	Service string // namespace/name
	Device  string
	Reason  string
}

// Check refuses what no event has.
func (f Filter) Check() error {
	if f.Service != "" && strings.Count(f.Service, "/") != 1 {
		return fmt.Errorf("--service %q: give namespace/name", f.Service)
	}
	if _, known := Reasons[f.Reason]; f.Reason == "" || known && told(f.Reason) {
		return nil
	}
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(Reasons)), func(r string) bool { return !told(r) })
	return fmt.Errorf("--reason %q%s: one of %s", f.Reason, nearest.Question(f.Reason, names), strings.Join(names, ", "))
}

// CheckNames refuses a Service that is not in the tables, and a device that this network
// namespace does not have: nothing would ever be shown. Errors: *QuestionError.
func (f Filter) CheckNames(services datapath.Hash[uint32, datapath.ServiceName]) error {
	if f.Device != "" {
		all, err := net.Interfaces()
		if err != nil {
			return err
		}
		var names []string
		for _, d := range all {
			names = append(names, d.Name)
		}
		if !slices.Contains(names, f.Device) {
			return wrong("--device %s: this node has no such device%s", f.Device, nearest.Question(f.Device, names))
		}
	}
	if f.Service == "" {
		return nil
	}
	names, err := services.All()
	if err != nil {
		return err
	}
	return KnownService(names, f.Service)
}

// told says whether there are events with a reason.
func told(reason string) bool {
	return reason == "new" || reason == "adopted" || unserved(reason) && !strings.HasPrefix(Reasons[reason], "left alone")
}

func unserved(reason string) bool { return reason == "rejected" || strings.HasPrefix(reason, "drop_") }

// Wants says whether an event is wanted.
func (f Filter) Wants(e *Event) bool {
	return (!f.Drops || unserved(e.Reason)) && (f.Service == "" || f.Service == e.Service) &&
		(f.Device == "" || f.Device == e.Device) && (f.Reason == "" || f.Reason == e.Reason)
}

// Query is the filter as a URL has it.
func (f Filter) Query() string {
	v := url.Values{}
	for key, value := range map[string]string{"service": f.Service, "device": f.Device, "reason": f.Reason} {
		if value != "" {
			v.Set(key, value)
		}
	}
	if f.Drops {
		v.Set("drops", "true")
	}
	return v.Encode()
}

// FilterFrom is the inverse of Query.
func FilterFrom(v url.Values) Filter {
	return Filter{Drops: v.Has("drops"), Service: v.Get("service"), Device: v.Get("device"), Reason: v.Get("reason")}
}

// EventReader names what events have as numbers. Its methods may be called from any
// goroutine.
type EventReader struct {
	services datapath.Hash[uint32, datapath.ServiceName]

	mu      gosync.Mutex
	names   map[uint32]datapath.ServiceName
	devices map[uint32]string
	read    time.Time
}

// NewEventReader reads the names of services from a table.
func NewEventReader(services datapath.Hash[uint32, datapath.ServiceName]) *EventReader {
	return &EventReader{services: services}
}

// Names are read anew so often, and when one is not known, though not more often than
// that: a flood of events may name what is not there.
const (
	namesAge      = 10 * time.Second
	namesInterval = 100 * time.Millisecond
)

// Event is an event in words.
func (r *EventReader) Event(e *datapath.EdgeEvent) *Event {
	reason := datapath.ReasonName(e.Reason)
	event := &Event{
		Time: time.Now().Add(-e.Age()), Entry: "tc", Reason: reason, Why: Reasons[reason],
		Protocol: service.Protocol(e.Packet.Protocol), Client: e.Packet.From(), Address: e.Packet.To(), Length: e.Length,
	}
	if e.Xdp != 0 {
		event.Entry = "xdp"
	}
	if reason == "new" || reason == "adopted" {
		event.Backend = e.Becomes.To()
		if via := e.Becomes.From(); via != event.Client {
			event.Via = via
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refresh(e.Service, e.Device)
	event.Device = r.devices[e.Device]
	if event.Device == "" {
		event.Device = fmt.Sprintf("(index %d)", e.Device)
	}
	if name, ok := r.names[e.Service]; ok {
		port := sync.PortOf(name)
		event.Service, event.Port = port.Owner.Namespace+"/"+port.Owner.Name, port.Name
	}
	return event
}

func (r *EventReader) refresh(id, device uint32) {
	_, named := r.names[id]
	_, found := r.devices[device]
	age := time.Since(r.read)
	if age < namesInterval || age < namesAge && found && (named || id == 0) {
		return
	}
	r.read = time.Now()
	// Where either cannot be read the numbers have to do.
	if names, err := r.services.All(); err == nil {
		r.names = names
	}
	all, _ := net.Interfaces()
	r.devices = map[uint32]string{}
	for _, d := range all {
		r.devices[uint32(d.Index)] = d.Name
	}
}
