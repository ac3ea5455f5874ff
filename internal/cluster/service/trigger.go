// SPDX-License-Identifier: Apache-2.0

package service

import "time"

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
		port   Port
		family int
	}
	internal, external := map[place]bool{}, map[place]bool{}
	for i := range p.Frontends {
		f := &p.Frontends[i]
		at := place{f.Port, 0}
		if FamilyOf(f.Key.Addr) == IPv6 {
			at.family = 1
		}
		switch f.Kind {
		case ClusterIP:
			internal[at] = internal[at] || f.Decisions[FromPod].Verdict == Drop
		case NodePort, LoadBalancer, ExternalIP:
			external[at] = external[at] || f.Decisions[FromOutside].Verdict == Drop
		}
	}
	for at, drops := range internal {
		if drops {
			lacks.Internal[at.family]++
		}
	}
	for at, drops := range external {
		if drops {
			lacks.External[at.family]++
		}
	}
	return lacks
}
