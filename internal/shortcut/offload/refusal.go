// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"maps"
	"slices"
	"time"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/conntrack"
	"beeline.io/beeline/internal/node/flow"
)

// refusal returns why a flow may not be offloaded; empty: it may. It is all that the agent asks about a flow, of both
// providers; a flow whose devices are not known is asked for any. The programs refuse before that what only a packet
// shows (offload_refusal in bpf/offload/learn.h); the flow cache afterwards what has no route or finds no room.
func (o *Offload) refusal(f flow.Flow) (reason string) {
	if reason = o.config.Policy.Refuses(f); reason != "" {
		return reason
	}
	if !o.config.IgnoreFilters {
		if reason = o.rules.refuses(f); reason != "" {
			return reason
		}
	}
	if slices.ContainsFunc([]flow.Tuple{f.In, f.Out, f.In.Reverse(), f.Out.Reverse()}, o.isOfEdge) {
		return "it is a flow of a Service, which the edge tracks"
	}
	return ""
}

// isOfEdge reports whether the edge has a conntrack entry for a tuple, or whether that is not known.
func (o *Offload) isOfEdge(t flow.Tuple) bool {
	if o.config.Edge == nil {
		return false
	}
	key := conntrack.Tuple{SourcePort: bpf.NetworkOrder(t.Source.Port()), DestinationPort: bpf.NetworkOrder(t.Destination.Port()), Protocol: t.Protocol}
	key.Source.Bytes, key.Destination.Bytes = t.Source.Addr().As16(), t.Destination.Addr().As16()
	for _, table := range o.config.Edge.All() {
		if entry, err := table.Get(key); err != nil || entry != nil {
			return true
		}
	}
	return false
}

func flowOf(e *Entry) flow.Flow {
	return flow.Flow{In: tupleOf(&e.Key.Tuple), Out: tupleOf(&e.To), InDevice: int(e.Key.Device), OutDevice: int(e.Device)}
}

func tupleOf(t *bpf.OffloadTuple) flow.Tuple {
	return flow.Tuple{Source: t.From(), Destination: t.To(), Protocol: t.Protocol}
}

// refusalTexts are the reasons of enum offload_refusal by their names.
var refusalTexts = map[string]string{
	"helper":         "a conntrack helper, a SYN proxy or an adjustment of sequence numbers changes its packets",
	"in_flowtable":   "it is in a flowtable of netfilter",
	"unknown_tunnel": "the key of its tunnel in external mode is not known, or its outer header has options",
	"unknown_device": "it arrives by a device that is none of flow offload's (--offload-devices)",
}

func refusalText(n uint32) string {
	names, err := refusalNames()
	if err != nil || int(n) >= len(names) || refusalTexts[names[n]] == "" {
		return "the program has refused it"
	}
	return refusalTexts[names[n]]
}

// refusals are the flows that stay on the stack, with the reason.
type refusals map[flow.Flow]refusal

type refusal struct {
	reason string
	at     time.Time
}

// Bounds of refusals.
const (
	refusalsMost = 4096
	refusalsAge  = 5 * time.Minute
)

// add notes a refusal. If there are refusalsMost it forgets one of the others.
func (r refusals) add(f flow.Flow, reason string) {
	if _, known := r[f]; !known && len(r) >= refusalsMost {
		for other := range r {
			delete(r, other)
			break
		}
	}
	r[f] = refusal{reason, time.Now()}
}

func (r refusals) expire() {
	maps.DeleteFunc(r, func(_ flow.Flow, why refusal) bool { return time.Since(why.at) > refusalsAge })
}
