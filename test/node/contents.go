// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"slices"
	"strings"

	"beeline.io/beeline/internal/api"
)

// Contents is the contents of the tables without their IDs, by frontend and backend: of two agents that have read
// the same objects they are equal, whatever each has done before.
func Contents(t *api.Tables) map[string]string {
	all := map[string]string{}
	for _, s := range t.Services {
		for _, f := range s.Frontends {
			all[fmt.Sprintf("%s %s %s/%s", s.Name, f.Kind, f.Address, f.Protocol)] = fmt.Sprintf(
				"%s pod: %s node: %s outside: %s kept: %s", f.Port, Decision(f.FromPods), Decision(f.FromNode), Decision(f.FromOutside), members(f.RetainedBackends))
		}
	}
	for _, b := range t.Backends {
		all["backend "+b.Address+"/"+b.Protocol.String()] = strings.Join(b.Services, " ")
	}
	return all
}

// Decision describes a decision without the tables' IDs.
func Decision(d api.Decision) string {
	if len(d.Backends) == 0 {
		return d.Verdict
	}
	return members(d.Backends)
}

func members(of []api.Member) string {
	var all []string
	for _, m := range of {
		all = append(all, m.Address)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}
