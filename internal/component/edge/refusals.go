// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"beeline.io/beeline/internal/condition"
	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/plural"
	"beeline.io/beeline/internal/service"
)

// refusalsShown is for how long refused packets count. At least one GC pass counts.
const refusalsShown = time.Minute

// refusals are what clients outside were refused and given in the last minute.
type refusals struct {
	passes []refusalPass
	// local are the ports that drop what clients outside send to some address: policy Local, and no endpoint here.
	local map[service.Ref]map[service.Port]bool
	// turned are those among them that have begun to since the last pass, which may have been served in it.
	turned map[service.Port]bool
}

// refusalPass is what one GC pass has found, by port.
type refusalPass struct {
	at    time.Time
	ports map[service.Port]portUse
}

type portUse struct{ refused, dropped, served uint64 } // packets

// note adds a pass. Ports that no Service has any more are forgotten.
func (r *refusals) note(at time.Time, ports map[service.Port]portUse, exists func(service.Port) bool) {
	r.passes = slices.DeleteFunc(r.passes, func(p refusalPass) bool { return at.Sub(p.at) >= refusalsShown })
	for _, p := range r.passes {
		for port := range p.ports {
			if !exists(port) {
				delete(p.ports, port)
			}
		}
	}
	r.passes = append(r.passes, refusalPass{at, ports})
	for _, p := range r.passes {
		for port := range r.turned {
			delete(p.ports, port)
		}
	}
	r.turned = nil
}

// useOf is what counters say that a port has done.
func useOf(c datapath.ServiceCounters) portUse {
	return portUse{refused: c.Refused, dropped: c.Dropped, served: c.Flows + c.SentPackets + c.ReceivedPackets}
}

// change notes which ports drop packets.
func (r *refusals) change(d service.Delta) {
	for ref, plan := range d.Plans {
		before := r.local[ref]
		delete(r.local, ref)
		if plan == nil {
			continue
		}
		ports := map[service.Port]bool{}
		for _, f := range plan.Frontends {
			if f.Decisions[service.FromOutside].Verdict == service.Drop {
				ports[f.Port] = true
				if !before[f.Port] {
					if r.turned == nil {
						r.turned = map[service.Port]bool{}
					}
					r.turned[f.Port] = true
				}
			}
		}
		if len(ports) > 0 {
			if r.local == nil {
				r.local = map[service.Ref]map[service.Port]bool{}
			}
			r.local[ref] = ports
		}
	}
}

// conditions names the Services with a port that has refused all of its packets.
func (r *refusals) conditions() (all condition.List) {
	sums := map[service.Port]portUse{}
	for _, p := range r.passes {
		for port, use := range p.ports {
			sum := sums[port]
			sums[port] = portUse{sum.refused + use.refused, sum.dropped + use.dropped, sum.served + use.served}
		}
	}
	refused, dropped := map[service.Ref][]string{}, map[service.Ref][]string{}
	for port, use := range sums {
		if use.served > 0 {
			continue
		}
		text := func(packets uint64) string {
			return fmt.Sprintf("%s to port %s", plural.Of(packets, "packet"), strings.TrimPrefix(port.Name+"/"+port.Protocol.String(), "/"))
		}
		if use.refused > 0 {
			refused[port.Owner] = append(refused[port.Owner], text(use.refused))
		} else if use.dropped > 0 && r.local[port.Owner][port] {
			dropped[port.Owner] = append(dropped[port.Owner], text(use.dropped))
		}
	}
	for owner, ports := range refused {
		slices.Sort(ports)
		all = append(all, condition.ServiceRefuses.New("all that clients outside sent in the last minute was refused: %s", strings.Join(ports, ", ")).At(owner.String()))
	}
	for owner, ports := range dropped {
		slices.Sort(ports)
		all = append(all, condition.ServiceRefuses.New("all that clients outside sent in the last minute was dropped, because its traffic policy is Local and this node has no endpoint: %s", strings.Join(ports, ", ")).At(owner.String()))
	}
	return all
}
