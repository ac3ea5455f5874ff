// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"slices"

	"beeline.io/beeline/internal/conntrack"
	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/datapath/codec"
	"beeline.io/beeline/internal/suggest"
)

// PortNames returns a function that maps IDs to names of service ports.
func PortNames(names map[uint32]datapath.ServiceName) conntrack.PortName {
	return func(id uint32) (owner, port string) {
		name, known := names[id]
		if !known {
			return "", ""
		}
		p := codec.PortOf(name)
		return p.Owner.Namespace + "/" + p.Owner.Name, p.Name
	}
}

// KnownService returns a *RequestError if no Service has this namespace/name.
func KnownService(names map[uint32]datapath.ServiceName, name string) error {
	var known []string
	for id := range names {
		if owner := codec.PortOf(names[id]).Owner; !slices.Contains(known, owner.Namespace+"/"+owner.Name) {
			known = append(known, owner.Namespace+"/"+owner.Name)
		}
	}
	if slices.Contains(known, name) {
		return nil
	}
	return BadRequest("--service %s: no such Service is in the tables%s; `beeline service list` shows those that are", name, suggest.DidYouMean(name, known))
}

// NamedService returns a filter of service IDs by namespace/name; an empty name selects all.
func NamedService(names map[uint32]datapath.ServiceName, name string) func(id uint32) bool {
	return func(id uint32) bool {
		owner := codec.PortOf(names[id]).Owner
		return name == "" || owner.Namespace+"/"+owner.Name == name
	}
}
