// SPDX-License-Identifier: Apache-2.0

package offline

import (
	"slices"
	"strings"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/conntrack"
	"beeline.io/beeline/internal/util/suggest"
)

// PortNames returns a function that maps IDs to names of service ports.
func PortNames(names map[uint32]bpf.ServiceName) conntrack.PortName {
	return func(id uint32) (owner, port string) {
		name, known := names[id]
		if !known {
			return "", ""
		}
		p := codec.PortOf(name)
		return p.Owner.Namespace + "/" + p.Owner.Name, p.Name
	}
}

// FindService returns the namespace/name of the Service of --service, which has that name, or alone has that name in
// any namespace. It returns a *RequestError if there is none, or several.
func FindService(names map[uint32]bpf.ServiceName, name string) (string, error) {
	var known []string
	for id := range names {
		if owner := codec.PortOf(names[id]).Owner; !slices.Contains(known, owner.Namespace+"/"+owner.Name) {
			known = append(known, owner.Namespace+"/"+owner.Name)
		}
	}
	if slices.Contains(known, name) {
		return name, nil
	}
	var sameName, bare []string
	for _, full := range known {
		_, last, _ := strings.Cut(full, "/")
		if bare = append(bare, last); last == name {
			sameName = append(sameName, full)
		}
	}
	switch {
	case len(sameName) == 1:
		return sameName[0], nil
	case len(sameName) > 1:
		slices.Sort(sameName)
		return "", api.BadRequest("--service %s: several Services have this name: give one of %s", name, strings.Join(sameName[:min(len(sameName), maxSameName)], ", "))
	}
	if !strings.Contains(name, "/") {
		known = bare
	}
	return "", api.BadRequest("--service %s: no such Service is in the tables%s; `beeline service list` shows those that are", name, suggest.DidYouMean(name, known))
}

// maxSameName is how many Services of the same name an error lists.
const maxSameName = 5

// NamedService returns a filter of service IDs by namespace/name; an empty name selects all.
func NamedService(names map[uint32]bpf.ServiceName, name string) func(id uint32) bool {
	return func(id uint32) bool {
		owner := codec.PortOf(names[id]).Owner
		return name == "" || owner.Namespace+"/"+owner.Name == name
	}
}
