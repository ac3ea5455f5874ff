// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"net/netip"
	"time"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/settable"
)

// Flow is one direction of a flow that this node forwards.
type Flow struct {
	Protocol uint8
	// Source and Destination are those of the packets that arrive; NewSource and NewDestination those of the packets
	// that leave. They differ with NAT.
	Source, Destination       netip.AddrPort
	NewSource, NewDestination netip.AddrPort
	// In and Out are the indexes of the devices.
	In, Out uint32
}

func flowOf(e *Entry) Flow {
	from, to := &e.Key.Tuple, &e.To
	return Flow{
		Protocol: from.Protocol,
		Source:   from.From(), Destination: from.To(), NewSource: to.From(), NewDestination: to.To(),
		In: e.Key.Device, Out: e.Device,
	}
}

// refusalTexts are the reasons of enum gateway_refusal by their names.
var refusalTexts = map[string]string{
	"helper":         "a conntrack helper, a SYN proxy or an adjustment of sequence numbers changes its packets",
	"offloaded":      "it is in a flowtable of netfilter",
	"unknown_tunnel": "it arrives by a tunnel in external mode with a key that is not known",
}

func refusalText(n uint32) string {
	names, err := datapath.GatewayRefusalNames()
	if err != nil || int(n) >= len(names) || refusalTexts[names[n]] == "" {
		return "the program has refused it"
	}
	return refusalTexts[names[n]]
}

// refusals are the flows that stay on the stack, with the reason.
type refusals struct{ flows map[Flow]refusal }

type refusal struct {
	reason string
	at     time.Time
}

// Bounds of refusals.
const (
	refusalsMost = 4096
	refusalsAge  = 5 * time.Minute
)

func newRefusals() refusals { return refusals{map[Flow]refusal{}} }

// add notes a refusal. When there are refusalsMost it forgets one of the others.
func (r refusals) add(f Flow, reason string) {
	if _, known := r.flows[f]; !known && len(r.flows) >= refusalsMost {
		for other := range r.flows {
			delete(r.flows, other)
			break
		}
	}
	r.flows[f] = refusal{reason, time.Now()}
}

func (r refusals) remove(f Flow) { delete(r.flows, f) }

func (r refusals) expire() {
	for f, why := range r.flows {
		if time.Since(why.at) > refusalsAge {
			delete(r.flows, f)
		}
	}
}

// FlowStatus is one direction of a flow as users see it.
type FlowStatus struct {
	Protocol       string         `json:"protocol"`
	Source         netip.AddrPort `json:"source"`
	Destination    netip.AddrPort `json:"destination"`
	NewSource      netip.AddrPort `json:"newSource"`
	NewDestination netip.AddrPort `json:"newDestination"`
	In             string         `json:"in"`
	Out            string         `json:"out"`
	// State is slow (on the stack), cache, flowtable, hardware or refused; Reason says why it is refused.
	State       string  `json:"state"`
	Reason      string  `json:"reason,omitempty"`
	Packets     uint64  `json:"packets"`
	Bytes       uint64  `json:"bytes"`
	IdleSeconds float64 `json:"idleSeconds"`
}

// idleSeconds is the time since a tick.
func idleSeconds(tick uint32) float64 {
	return float64(max(0, int32(settable.Tick()-tick))) * float64(1<<20) / 1e9
}
