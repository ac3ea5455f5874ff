// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Says is what agents report of themselves, for a test that has waited in vain: components, conditions, and the
// packets that the edge has counted by reason.
func Says(agents ...*Agent) string {
	var all []string
	for _, a := range agents {
		all = append(all, a.says())
	}
	return strings.Join(all, "\n")
}

func (a *Agent) says() string {
	if a == nil || !a.Running() {
		return "the agent does not run"
	}
	s, err := a.Status()
	if err != nil {
		return fmt.Sprintf("the agent of %s has no status: %v", a.Host.Name, err)
	}
	lines := []string{"the agent of " + a.Host.Name + " says:"}
	for _, c := range s.Components {
		lines = append(lines, c.Name+": "+c.State)
	}
	for _, c := range s.Conditions {
		lines = append(lines, string(c.Severity)+": "+c.String())
	}
	if s.Edge != nil {
		lines = append(lines, "packets at the edge: "+Counted(s.Edge.Counters))
	}
	return strings.Join(lines, "\n  ")
}

// Counted is the counters that are not 0, such as "drop_policy 2, new 1".
func Counted(counters map[string]uint64) string {
	var all []string
	for _, reason := range slices.Sorted(maps.Keys(counters)) {
		if n := counters[reason]; n != 0 {
			all = append(all, fmt.Sprintf("%s %d", reason, n))
		}
	}
	if all == nil {
		return "none"
	}
	return strings.Join(all, ", ")
}
