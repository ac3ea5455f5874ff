// SPDX-License-Identifier: Apache-2.0

package service

import "slices"

// WithoutAnnotations returns the changes as if Services, EndpointSlices and Pods had no beeline.io/...
// annotations, so that authors of these objects cannot control the node's tables and packet path. Annotations
// of Namespaces and RuntimeClasses, which belong to cluster administrators, stay.
func WithoutAnnotations(changes []Change) []Change {
	plain := slices.Clone(changes)
	for i := range plain {
		switch o := plain[i].Object.(type) {
		case *Service:
			plain[i].Object = o.withoutAnnotations()
		case *EndpointSlice:
			plain[i].Object = o.withoutAnnotations()
		case *Pod:
			p := *o
			p.Shortcut, p.Unknown = "", nil
			plain[i].Object = &p
		}
	}
	return plain
}

func (s *Service) withoutAnnotations() *Service {
	plain := *s
	plain.Algorithm, plain.DSR, plain.DSRHybrid, plain.Stateless = "", "", "", ""
	plain.Check, plain.CheckErrors, plain.Unknown = HealthCheck{}, nil, nil
	return &plain
}

func (s *EndpointSlice) withoutAnnotations() *EndpointSlice {
	weighted := len(s.Endpoints) > 0 && s.Endpoints[0].Weight != 1 // all endpoints of a slice have the same weight
	if !weighted && s.Unknown == nil {
		return s
	}
	plain := *s
	plain.Unknown = nil
	plain.Endpoints = slices.Clone(s.Endpoints)
	for i := range plain.Endpoints {
		plain.Endpoints[i].Weight = 1
	}
	return &plain
}
