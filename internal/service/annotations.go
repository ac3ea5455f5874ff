// SPDX-License-Identifier: Apache-2.0

package service

import "slices"

// WithoutAnnotations are the changes as if Services, EndpointSlices and Pods had no annotations beeline.io/...:
// who may write these objects need not be trusted with the node's tables and with its packet path. Those of
// Namespaces and RuntimeClasses, which belong to who runs the cluster, stay.
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
			p.Shortcut = ""
			plain[i].Object = &p
		}
	}
	return plain
}

func (s *Service) withoutAnnotations() *Service {
	plain := *s
	plain.Algorithm, plain.DSR, plain.DSRHybrid, plain.Stateless = "", "", "", ""
	plain.Check, plain.CheckErrors = HealthCheck{}, nil
	return &plain
}

func (s *EndpointSlice) withoutAnnotations() *EndpointSlice {
	if len(s.Endpoints) == 0 || s.Endpoints[0].Weight == 1 { // all of a slice have one weight
		return s
	}
	plain := *s
	plain.Endpoints = slices.Clone(s.Endpoints)
	for i := range plain.Endpoints {
		plain.Endpoints[i].Weight = 1
	}
	return &plain
}
