// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"time"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/node/flow"
)

func flowOf(e *Entry) flow.Flow {
	in, out := &e.Key.Tuple, &e.To
	return flow.Flow{
		In:       flow.Tuple{Source: in.From(), Destination: in.To(), Protocol: in.Protocol},
		Out:      flow.Tuple{Source: out.From(), Destination: out.To(), Protocol: out.Protocol},
		InDevice: int(e.Key.Device), OutDevice: int(e.Device),
	}
}

// refusalTexts are the reasons of enum offload_refusal by their names.
var refusalTexts = map[string]string{
	"helper":         "a conntrack helper, a SYN proxy or an adjustment of sequence numbers changes its packets",
	"in_flowtable":   "it is in a flowtable of netfilter",
	"unknown_tunnel": "the key of its tunnel in external mode is not known, or its outer header has options",
	"unknown_device": "it arrives by a device that is none of flow offload's (--offload-devices)",
}

func refusalText(n uint32) string {
	names, err := bpf.OffloadRefusalNames()
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
	for f, why := range r {
		if time.Since(why.at) > refusalsAge {
			delete(r, f)
		}
	}
}
