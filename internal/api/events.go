// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/util/suggest"
)

// Event is what the edge did with a packet: a new flow, a reject or a drop.
type Event struct {
	Time time.Time `json:"time"`
	// Hook is the hook that handled the packet: xdp or tc.
	Hook   string `json:"hook"`
	Device string `json:"device"`
	// Reason is a key of Reasons, and Why its text.
	Reason string `json:"reason"`
	Why    string `json:"why"`
	// Service is namespace/name, or empty; Port is the name of the service port.
	Service  string           `json:"service,omitempty"`
	Port     string           `json:"port,omitempty"`
	Protocol service.Protocol `json:"protocol"`
	Client   netip.AddrPort   `json:"client"`
	Address  netip.AddrPort   `json:"address"`
	// Backend is the backend of a new flow. SeenAs is the source address that the backend sees, unless it is
	// the client's.
	Backend netip.AddrPort `json:"backend,omitzero"`
	SeenAs  netip.AddrPort `json:"seenAs,omitzero"`
	Length  uint32         `json:"length"` // in bytes, from the IP header on
}

// EventMessage is an element of a stream of events.
type EventMessage struct {
	Event *Event `json:"event,omitempty"`
	// LostEvents is the number of events that were lost since the previous message.
	LostEvents uint64 `json:"lostEvents,omitempty"`
}

// Reasons maps reasons to text. Events are sent only for new, recovered, rejected, and reasons whose text
// begins with "dropped".
var Reasons = map[string]string{
	"not_service":            "passed unchanged: no Service and no flow",
	"established":            "packet of an established flow",
	"reply":                  "packet of an established flow, from the backend",
	"new":                    "new flow",
	"recovered":              "flow recovered: one of its conntrack entries had been lost",
	"untracked":              "DSR: forwarded to the backend that every balancer chooses for the flow, without a conntrack entry",
	"icmp":                   "ICMP error about a packet of a flow",
	"rejected":               "rejected: no endpoint, or no such port",
	"echo":                   "answered: ICMP echo request",
	"drop_policy":            "dropped: traffic policy Local, and no endpoint on this node",
	"drop_source":            "dropped: source not in loadBalancerSourceRanges",
	"drop_no_service":        "dropped: address of a ServiceCIDR that no Service has",
	"drop_no_backend":        "dropped: the tables are damaged, a slot has no backend",
	"drop_no_route":          "dropped: no route",
	"drop_forwarding":        "dropped: the kernel does not forward packets from this device (`beeline status` names the sysctl)",
	"drop_no_address":        "dropped: the device has no address for SNAT",
	"drop_no_port":           "dropped: no free SNAT port (--snat-ports); for SCTP, another client's flow uses this client's source port",
	"drop_sctp_port":         "dropped: the backend's port differs from the Service's, and SCTP ports are never translated",
	"drop_insert_failed":     "dropped: the conntrack entry could not be stored (--max-flows)",
	"drop_spoofed":           "dropped: encapsulated for a backend of this node, but not by a node or one of --dsr-balancers",
	"drop_backend_not_local": "dropped: encapsulated for a backend that the Service does not have on this node",
	"drop_fragment":          "dropped: a fragment for a Service without the first fragment, or of an ICMP echo request",
	"drop_invalid":           "dropped: a TCP packet that neither starts a connection nor belongs to a known one (RST, FIN or SYN+ACK)",
	"malformed":              "passed unchanged: inconsistent headers, TCP flags that do not go together, a wrong checksum of the IPv4 header or of a flow's first packet, or an invalid source address",
	"drop_rewrite_failed":    "dropped: the packet could not be rewritten",
	"ttl_exceeded":           "dropped: TTL exceeded (answered with ICMP time exceeded)",
	"drop_too_big":           "dropped: too big for the next hop (answered with ICMP, unless it must be fragmented and cannot be)",
	"icmp_rate_limited":      "dropped: the ICMP error for the packet exceeded the rate limit (--icmp-rate)",
	"drop_redirect":          "dropped: an ICMP redirect about a packet of a flow",
	"fragmented":             "fragmented: too big for the next hop; the fragments are counted when they return",
	"kernel_flow":            "passed unchanged: of a flow in the kernel's conntrack, such as the answer to a masqueraded pod",
	"kernel_socket":          "passed unchanged: to a socket of this node that is connected to the sender",
	"drop_reverse_path":      "dropped: the source is an address of this node, or rp_filter does not allow it at this device",
	"drop_xfrm":              "dropped: an XFRM policy concerns the flow, which would pass in clear",
	"drop_other_connection":  "dropped: the backend acknowledges another connection from the client's port, instead of the one that the client opens; the client's next SYN gets another port",
	"drop_scope":             "dropped: a link-local source may not leave its link",
	"to_tc":                  "passed by XDP to tc: another device, an unresolved next hop, a packet to fragment, or no room for a reply",
}

// Filter selects events; the zero value selects all.
type Filter struct {
	Drops   bool   // only rejects and drops
	Service string // namespace/name
	Device  string
	Reason  string
}

// Check rejects values that no event has.
func (f Filter) Check() error {
	if f.Service != "" && strings.Count(f.Service, "/") > 1 {
		return fmt.Errorf("--service %q: not of the form namespace/name or name", f.Service)
	}
	if _, known := Reasons[f.Reason]; f.Reason == "" || known && isReported(f.Reason) {
		return nil
	}
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(Reasons)), func(r string) bool { return !isReported(r) })
	return fmt.Errorf("--reason %q%s: one of %s", f.Reason, suggest.DidYouMean(f.Reason, names), strings.Join(names, ", "))
}

// isReported reports whether events are sent for a reason.
func isReported(reason string) bool {
	return reason == "new" || reason == "recovered" || unserved(reason)
}

func unserved(reason string) bool { return reason == "rejected" || Dropped(reason) }

// Dropped reports whether packets with a reason are dropped.
func Dropped(reason string) bool { return strings.HasPrefix(Reasons[reason], "dropped") }

// Wants reports whether the filter selects an event.
func (f Filter) Wants(e *Event) bool {
	return (!f.Drops || unserved(e.Reason)) && (f.Service == "" || f.Service == e.Service) &&
		(f.Device == "" || f.Device == e.Device) && (f.Reason == "" || f.Reason == e.Reason)
}

// Query encodes the filter as a URL query.
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
