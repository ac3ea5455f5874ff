// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"beeline.io/beeline/internal/condition"
	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/service"
)

// refusalsShown is for how long refused packets count. At least one GC pass counts.
const refusalsShown = time.Minute

// refusals are what clients outside were refused and given in the last minute.
type refusals struct{ passes []refusalPass }

// refusalPass is what one GC pass has found, by port.
type refusalPass struct {
	at    time.Time
	ports map[service.Port]portUse
}

type portUse struct{ refused, served uint64 } // packets

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
}

// useOf is what counters say that a port has done.
func useOf(c datapath.ServiceCounters) portUse {
	return portUse{refused: c.Refused, served: c.Flows + c.SentPackets + c.ReceivedPackets}
}

// conditions names the Services with a port that has refused all of its packets.
func (r *refusals) conditions() (all condition.List) {
	sums := map[service.Port]portUse{}
	for _, p := range r.passes {
		for port, use := range p.ports {
			sum := sums[port]
			sums[port] = portUse{sum.refused + use.refused, sum.served + use.served}
		}
	}
	byOwner := map[service.Ref][]string{}
	for port, use := range sums {
		if use.refused > 0 && use.served == 0 {
			byOwner[port.Owner] = append(byOwner[port.Owner], fmt.Sprintf("%d packets to port %s", use.refused, strings.TrimPrefix(port.Name+"/"+port.Protocol.String(), "/")))
		}
	}
	for owner, ports := range byOwner {
		slices.Sort(ports)
		all = append(all, condition.ServiceRefuses.New("all that clients outside sent in the last minute was refused: %s", strings.Join(ports, ", ")).At(owner.String()))
	}
	return all
}
