// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/util/plural"
)

// refusalsShown is for how long refused packets count. At least one GC pass counts.
const refusalsShown = time.Minute

// maxRefusing is how many addresses of a Service a condition names.
const maxRefusing = 3

// refusals are what clients outside were refused and given in the last minute.
type refusals struct {
	passes []refusalPass
	// local are the frontends that drop what clients outside send: policy Local, and no endpoint here.
	local map[service.Ref]map[service.FrontendKey]bool
	drops map[service.FrontendKey]uint64 // packets of each frontend, as last read; nil before
}

// refusalPass is what one GC pass has found.
type refusalPass struct {
	at    time.Time
	ports map[service.Port]portUse
	drops map[service.FrontendKey]uint64 // packets, by policy Local
}

type portUse struct{ refused, served uint64 } // packets

// note adds a pass: how ports were used in it, and what each frontend has dropped so far. Ports that no Service has any
// more are forgotten.
func (r *refusals) note(at time.Time, ports map[service.Port]portUse, drops map[service.FrontendKey]uint64, exists func(service.Port) bool) {
	r.passes = slices.DeleteFunc(r.passes, func(p refusalPass) bool { return at.Sub(p.at) >= refusalsShown })
	for _, p := range r.passes {
		for port := range p.ports {
			if !exists(port) {
				delete(p.ports, port)
			}
		}
	}
	r.passes = append(r.passes, refusalPass{at, ports, r.grown(drops)})
}

// grown returns what frontends have dropped since the last pass; none in the first, which has the time before this
// agent. The kernel may have begun a counter anew, for lack of room.
func (r *refusals) grown(drops map[service.FrontendKey]uint64) map[service.FrontendKey]uint64 {
	grown := map[service.FrontendKey]uint64{}
	for key, n := range drops {
		before := r.drops[key]
		if n < before {
			before = 0
		}
		if r.drops != nil && n > before {
			grown[key] = n - before
		}
	}
	if r.drops = drops; drops == nil {
		r.drops = map[service.FrontendKey]uint64{}
	}
	return grown
}

// useOf is what counters say that a port has done.
func useOf(c bpf.ServiceCounters) portUse {
	return portUse{refused: c.Refused, served: c.Flows + c.SentPackets + c.ReceivedPackets}
}

// change notes which frontends drop packets.
func (r *refusals) change(d service.Delta) {
	for ref, plan := range d.Plans {
		delete(r.local, ref)
		if plan == nil {
			continue
		}
		keys := map[service.FrontendKey]bool{}
		for _, f := range plan.Frontends {
			if f.Decisions[service.FromOutside].Verdict == service.Drop {
				keys[f.Key] = true
			}
		}
		if len(keys) > 0 {
			if r.local == nil {
				r.local = map[service.Ref]map[service.FrontendKey]bool{}
			}
			r.local[ref] = keys
		}
	}
}

// conditions names the Services with a port that has refused all of its packets, or with an address that drops them,
// whatever other addresses of its port do.
func (r *refusals) conditions() condition.List { return append(r.refusing(), r.dropping()...) }

func (r *refusals) refusing() (all condition.List) {
	sums := map[service.Port]portUse{}
	for _, p := range r.passes {
		for port, use := range p.ports {
			sum := sums[port]
			sums[port] = portUse{sum.refused + use.refused, sum.served + use.served}
		}
	}
	refused := map[service.Ref][]string{}
	for port, use := range sums {
		if use.refused > 0 && use.served == 0 {
			name := strings.TrimPrefix(port.Name+"/"+port.Protocol.String(), "/")
			refused[port.Owner] = append(refused[port.Owner], fmt.Sprintf("%s to port %s", plural.Of(use.refused, "packet"), name))
		}
	}
	for owner, ports := range refused {
		slices.Sort(ports)
		all = append(all, condition.ServiceRefuses.New("all that clients outside sent in the last minute was refused: %s", strings.Join(ports, ", ")).At(owner.String()))
	}
	return all
}

func (r *refusals) dropping() (all condition.List) {
	sums := map[service.FrontendKey]uint64{}
	for _, p := range r.passes {
		for key, n := range p.drops {
			sums[key] += n
		}
	}
	for owner, keys := range r.local {
		var at []service.FrontendKey
		for key := range keys {
			if sums[key] > 0 {
				at = append(at, key)
			}
		}
		if len(at) == 0 {
			continue
		}
		slices.SortFunc(at, func(a, b service.FrontendKey) int {
			return cmp.Or(cmp.Compare(sums[b], sums[a]), strings.Compare(a.String(), b.String()))
		})
		var names []string
		for _, key := range at[:min(len(at), maxRefusing)] {
			names = append(names, fmt.Sprintf("%s to %s", plural.Of(sums[key], "packet"), key))
		}
		if more := len(at) - len(names); more > 0 {
			names = append(names, fmt.Sprintf("others to %d more", more))
		}
		all = append(all, condition.ServiceRefuses.New("what clients outside sent in the last minute was dropped, because the traffic policy there is Local and this node has no endpoint: %s", strings.Join(names, ", ")).At(owner.String()))
	}
	return all
}
