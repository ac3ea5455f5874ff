// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"fmt"
	"slices"
	"strings"
)

// What can become of a connection, or of a datagram that waits for an answer.
// Any other error of the socket is its own word, as the kernel has it.
const (
	answered    = "answer"
	refused     = "refused"     // ECONNREFUSED: TCP RST, ICMP port unreachable
	denied      = "denied"      // EPERM
	silence     = "silence"     // nothing, for as long as was waited
	unsent      = "unsent"      // ENOBUFS: the device has not taken it
	unreachable = "unreachable" // ENETUNREACH: nobody has translated the address
	nobody      = "nobody"      // EHOSTUNREACH: translated, but nobody has the endpoint's address
	misnamed    = "misnamed"    // answered under another name than was asked
	nonsense    = "nonsense"    // something else than a server's answer, or less
	// sticky: each time the same backend, and one that the client may reach.
	sticky = "sticky"
	// wandering: each time the same backend, but not that which the client has had
	// at another address of the Service.
	wandering = "wandering"
)

// Observation is what became of one connection.
type Observation struct {
	Result string `json:"result"`
	// Backend is the host that answered, and Source the client's address as it
	// saw it: own, node (the judged node's), or whatever else.
	Backend string `json:"backend,omitempty"`
	Source  string `json:"source,omitempty"`
}

func (o Observation) String() string {
	if o.Backend == "" {
		return o.Result
	}
	return fmt.Sprintf("%s of %s to %s", o.Result, o.Backend, o.Source)
}

// Outcome is what became of several equal connections: each thing that did,
// once, in order.
type Outcome []Observation

func (o Outcome) String() string {
	var words []string
	for _, observation := range o {
		words = append(words, observation.String())
	}
	return strings.Join(words, ", ")
}

func (o *Outcome) add(more ...Observation) {
	for _, observation := range more {
		if !slices.Contains(*o, observation) {
			*o = append(*o, observation)
		}
	}
	slices.SortFunc(*o, func(a, b Observation) int { return strings.Compare(a.String(), b.String()) })
}

// addHeard adds what another outcome has but silence.
func (o *Outcome) addHeard(other Outcome) {
	for _, observation := range other {
		if observation.Result != silence {
			o.add(observation)
		}
	}
}

// backends are the hosts that answered.
func (o Outcome) backends() []string {
	var names []string
	for _, observation := range o {
		if observation.Backend != "" && !slices.Contains(names, observation.Backend) {
			names = append(names, observation.Backend)
		}
	}
	return names
}

// endpoints are the endpoints that were reached: the hosts that answered, and
// all of those that nobody has as one.
func (o Outcome) endpoints() []string {
	names := o.backends()
	if slices.Contains(o, Observation{Result: nobody}) {
		names = append(names, nobody)
	}
	return names
}
