// SPDX-License-Identifier: Apache-2.0

package service

import (
	"slices"
	"time"
)

// A Trigger is the change of a pod or Service that made the controller write an EndpointSlice. The time from it
// until the tables follow is the network programming latency (SIG Scalability's SLI).
type Trigger struct {
	Service Ref
	Family  Family
	At      time.Time
}

// noteTrigger adds the trigger of a changed slice. That of a removed slice is unknown: the annotation is of its last
// change.
func (b *batch) noteTrigger(s *EndpointSlice) {
	if !s.Triggered.IsZero() {
		b.triggers = append(b.triggers, Trigger{s.serviceRef(), s.Family, s.Triggered})
	}
}

// LocalPorts counts ports of Services by family, IPv4 first. Internal are those with internalTrafficPolicy Local,
// External those with externalTrafficPolicy Local.
type LocalPorts struct{ Internal, External [2]int }

// Add adds o.
func (l *LocalPorts) Add(o LocalPorts) { l.add(o, 1) }

// Subtract subtracts o.
func (l *LocalPorts) Subtract(o LocalPorts) { l.add(o, -1) }

func (l *LocalPorts) add(o LocalPorts, factor int) {
	for i := range l.Internal {
		l.Internal[i] += factor * o.Internal[i]
		l.External[i] += factor * o.External[i]
	}
}

// WithoutLocalEndpoints counts the ports of a Service that have endpoints, but for a policy of Local none on this
// node: their packets are dropped (R16, R18). p may be nil.
func (p *Plan) WithoutLocalEndpoints() (lacks LocalPorts) {
	if p == nil {
		return lacks
	}
	type place struct {
		port  Port
		count *int
	}
	counted := map[place]bool{}
	for i := range p.Frontends {
		f := &p.Frontends[i]
		family := slices.Index(Families, FamilyOf(f.Key.Addr))
		at, class := place{f.Port, &lacks.External[family]}, FromOutside
		switch f.Kind {
		case ClusterIP:
			at.count, class = &lacks.Internal[family], FromPod
		case ClusterIPOtherPorts, HostPort, Echo:
			continue
		}
		if f.Decisions[class].Verdict == Drop && !counted[at] {
			counted[at] = true
			*at.count++
		}
	}
	return lacks
}
