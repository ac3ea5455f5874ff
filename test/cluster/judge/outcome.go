// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"fmt"
	"slices"
	"strings"
)

// The results of a connection, or of a datagram that waits for a reply. Any other error of the socket is itself
// the result, in the kernel's words.
const (
	answered    = "answer"
	refused     = "refused"     // ECONNREFUSED: TCP RST, ICMP port unreachable
	denied      = "denied"      // EPERM
	silence     = "silence"     // nothing, within the patience
	unsent      = "unsent"      // ENOBUFS: the device has not accepted it
	unreachable = "unreachable" // ENETUNREACH: the address was not translated
	nobody      = "nobody"      // EHOSTUNREACH: translated, but the endpoint's address does not exist
	misnamed    = "misnamed"    // the reply has another source than the probe's destination
	nonsense    = "nonsense"    // not, or not all of, a server's answer
	// sticky: each time the same backend, which the client can reach.
	sticky = "sticky"
	// wandering: each time the same backend, but not the client's at another address of the Service.
	wandering = "wandering"
)

// Observation is the result of one connection.
type Observation struct {
	Result string `json:"result"`
	// Backend is the host that answered, and Source the client's address as it saw it: own, node (the
	// judged node's), or the address itself.
	Backend string `json:"backend,omitempty"`
	Source  string `json:"source,omitempty"`
}

func (o Observation) String() string {
	if o.Backend == "" {
		return o.Result
	}
	return fmt.Sprintf("%s of %s to %s", o.Result, o.Backend, o.Source)
}

// Outcome is the distinct results of several equal connections, sorted.
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

// addHeard adds another outcome's results except silence.
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

// endpoints are the endpoints that were reached: the hosts that answered, and all that do not exist as one.
func (o Outcome) endpoints() []string {
	names := o.backends()
	if slices.Contains(o, Observation{Result: nobody}) {
		names = append(names, nobody)
	}
	return names
}
