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

// join joins the files. An object in two files is an error, because it is not clear which one is meant.
func (s *Source) join() reading {
	files := slices.SortedFunc(maps.Values(s.files), func(a, b *file) int { return strings.Compare(a.name, b.name) })
	type place struct {
		file string
		line int
	}
	r := reading{objects: make(map[service.Ref]service.Object)}
	first := make(map[service.Ref]place)
	for _, f := range files {
		r.problems = append(r.problems, f.problems...)
		for _, o := range f.objects {
			ref := o.object.Ref()
			if at, ok := first[ref]; ok {
				r.problems = append(r.problems, source.Problem{
					File: f.name, Line: o.line, Object: ref.String(),
					Reason: fmt.Sprintf("is already in %s:%d; remove one of the two", at.file, at.line),
				})
				continue
			}
			first[ref] = place{f.name, o.line}
			r.objects[ref] = o.object
		}
	}
	r.problems = append(r.problems, sharedAddresses(files)...)
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

// allocated returns each allocation of a Service once.
func allocated(s *service.Service) []allocation {
	var all []allocation
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

// sharedAddresses reports ClusterIPs and NodePorts that two Services have, which an API server would not
// allocate twice. It is not clear which Service is meant, and a working one must not lose them to a new one.
func sharedAddresses(files []*file) (problems source.Problems) {
	type holder struct {
		ref   service.Ref
		place string
	}
	first := map[allocation]holder{}
	for _, f := range files {
		for _, o := range f.objects {
			s, ok := o.object.(*service.Service)
			if !ok {
				continue
			}
			for _, c := range allocated(s) {
				other, taken := first[c]
				if !taken {
					first[c] = holder{s.Ref(), fmt.Sprintf("%s:%d", f.name, o.line)}
				} else if other.ref != s.Ref() { // duplicate objects are reported as such
					problems = append(problems, source.Problem{File: f.name, Line: o.line, Object: s.Ref().String(),
						Reason: fmt.Sprintf("%s: %s already belongs to %s (%s); choose another", c.field, c.value, other.ref, other.place)})
				}
			}
		}
	}
	return problems
}
