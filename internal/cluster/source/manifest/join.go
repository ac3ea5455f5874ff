// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/cluster/source"
)

// reading is the joined content of all files.
type reading struct {
	// objects is valid only if no problem is an error.
	objects  map[service.Ref]service.Object
	problems source.Problems
}

// join joins the files. An object in two files is an error, because it is not clear which one is meant. So is an
// allocation that two Services have: a working one must not lose it to a new one.
func (s *Source) join() reading {
	type holder struct {
		ref   service.Ref
		place string
	}
	r := reading{objects: make(map[service.Ref]service.Object)}
	first, holders := map[service.Ref]string{}, map[allocation]holder{}
	for _, f := range slices.SortedFunc(maps.Values(s.files), func(a, b *file) int { return strings.Compare(a.name, b.name) }) {
		r.problems = append(r.problems, f.problems...)
		for _, o := range f.objects {
			ref, place := o.object.Ref(), fmt.Sprintf("%s:%d", f.name, o.line)
			conflict := func(format string, args ...any) {
				r.problems = append(r.problems, source.Problem{File: f.name, Line: o.line, Object: ref.String(), Reason: fmt.Sprintf(format, args...)})
			}
			if at, ok := first[ref]; ok {
				conflict("is already in %s; remove one of the two", at)
			} else {
				first[ref], r.objects[ref] = place, o.object
			}
			for _, a := range allocated(o.object) {
				if other, taken := holders[a]; !taken {
					holders[a] = holder{ref, place}
				} else if other.ref != ref { // a duplicate object is reported as such
					conflict("%s: %s already belongs to %s (%s); choose another", a.field, a.value, other.ref, other.place)
				}
			}
		}
	}
	r.problems = s.inOrder(r.problems)
	return r
}

// inOrder sorts problems and truncates the list.
func (s *Source) inOrder(problems source.Problems) source.Problems {
	slices.SortStableFunc(problems, comparePlace)
	return truncate(problems, s.limits.report, s.path)
}

// allocation is a value that an API server gives to only one Service.
type allocation struct{ field, value string }

// allocated returns each allocation of a Service once; other objects have none.
func allocated(o service.Object) (all []allocation) {
	s, ok := o.(*service.Service)
	if !ok {
		return nil
	}
	for _, ip := range s.ClusterIPs {
		if ip != "" && ip != "None" {
			all = append(all, allocation{"spec.clusterIPs", ip})
		}
	}
	seen := map[allocation]bool{}
	for _, p := range s.Ports {
		if c := (allocation{"spec.ports[].nodePort", fmt.Sprintf("%d/%s", p.NodePort, p.Protocol)}); p.NodePort != 0 && !seen[c] {
			all, seen[c] = append(all, c), true
		}
	}
	return all
}
