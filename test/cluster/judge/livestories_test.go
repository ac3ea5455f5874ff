// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"slices"
)

// What may be seen in between if only several writes together are consistent.
var (
	// A Service without endpoints, or endpoints without their port.
	refusedBetween = resultOneOf(refused)
	// No Service: its ClusterIP is an unused one of the ServiceCIDR, and for a moment before that one
	// without ports; its node port has no listener; a reply to an earlier datagram arrives without the
	// Service's name.
	goneBetween = resultOneOf(refused, denied, unreachable, misnamed)
)

const (
	lives = "lives"
	ends  = "ends"
)

var stories = slices.Concat(serviceStories, sliceStories, podStories)

var serviceStories = []story{{
	what: "types", rules: "R17, R18, R22, R24", subject: base(1), to: []string{"clusterIP", "nodePort", "ingress"},
	changes: []change{
		{what: "ClusterIP becomes NodePort", edit: func(s *Subject) { s.Type, s.External = "NodePort", "Cluster" }, udp: lives},
		{what: "NodePort becomes LoadBalancer", edit: func(s *Subject) { s.Type, s.Ingress = "LoadBalancer", "VIP" }, udp: lives},
		{what: "externalTrafficPolicy becomes Local", edit: func(s *Subject) { s.External = "Local" }, udp: lives},
		{what: "externalTrafficPolicy becomes Cluster", edit: func(s *Subject) { s.External = "Cluster" }, udp: lives},
		{what: "ipMode becomes Proxy", edit: func(s *Subject) { s.Ingress = "Proxy" }},
		{what: "ipMode becomes VIP", edit: func(s *Subject) { s.Ingress = "VIP" }, udp: lives},
		{what: "LoadBalancer becomes ClusterIP", edit: func(s *Subject) { s.Type, s.External, s.Ingress = "ClusterIP", "", "" }},
	},
}, {
	what: "names of ports", rules: "R5", subject: base(2), to: []string{"clusterIP"},
	changes: []change{
		{what: "slices have both names", edit: func(s *Subject) { s.SliceSuffixes = []string{"", "-new"} }, udp: lives},
		{what: "the Service has the new name", edit: func(s *Subject) { s.Suffix = "-new" }, udp: lives},
		{what: "slices have only the new name", edit: func(s *Subject) { s.SliceSuffixes = []string{"-new"} }, udp: lives},
		{what: "the old name again, Service first", edit: func(s *Subject) { s.Suffix, s.SliceSuffixes = "", nil }, between: refusedBetween},
		{what: "the new name again, slices first", edit: func(s *Subject) { s.Suffix, s.SliceSuffixes = "-new", []string{"-new"} },
			order: slices.Reverse[[]write], between: refusedBetween},
		{what: "the Service has another name", edit: func(s *Subject) { s.Suffix = "-other" }},
	},
}, {
	what: "numbers of ports", rules: "R17, R21, R22, R28", subject: asNodePort(base(3)), probes: numberQuestions(),
	changes: []change{
		{what: "port 80 becomes 81", edit: func(s *Subject) { s.Moved = true }},
		{what: "port 81 becomes 80", edit: func(s *Subject) { s.Moved = false }},
		{what: "UDP is removed", edit: func(s *Subject) { s.Ports = "tcp" }},
		{what: "UDP is added and TCP removed", edit: func(s *Subject) { s.Ports = "udp" }, between: refusedBetween},
		{what: "TCP is added", edit: func(s *Subject) { s.Ports = "tcp+udp" }, between: refusedBetween},
	},
}, {
	what: "IPv6 is added and removed", rules: "R7", subject: inFamilies(base(4), "v4"), to: []string{"clusterIP", "nodePort"},
	changes: dualStack("v4", "v4v6"),
}, {
	what: "IPv4 is added and removed", rules: "R7", subject: inFamilies(base(5), "v6"), to: []string{"clusterIP", "nodePort"},
	changes: dualStack("v6", "v6v4"),
}, {
	what: "labels of Service and slices", rules: "R1, R2", subject: asNodePort(base(6)), to: []string{"clusterIP", "nodePort"},
	changes: []change{
		{what: "service-proxy-name is set", edit: func(s *Subject) { s.Label = "proxy" }},
		{what: "service-proxy-name is removed", edit: func(s *Subject) { s.Label = "" }},
		{what: "headless is set", edit: func(s *Subject) { s.Label = "headless" }, between: refusedBetween, udp: ends},
		{what: "headless is removed", edit: func(s *Subject) { s.Label = "" }},
	},
}, {
	what: "a ClusterIP is used again", rules: "R6, R29", subject: asNodePort(base(7, "a2")), to: []string{"clusterIP", "nodePort"},
	changes: []change{
		{what: "by a Service with other endpoints", edit: func(s *Subject) { s.Rename, s.Endpoints = "after", ready("b1") }, between: goneBetween, udp: ends},
		{what: "by one whose slices are late", edit: func(s *Subject) { s.Rename, s.Endpoints = "late", ready("a3", "b2") },
			order: slicesLast, between: goneBetween, udp: ends},
		{what: "by the first, with two endpoints", edit: func(s *Subject) { s.Rename, s.Endpoints = "", ready("a2", "b1") }, between: goneBetween, udp: ends},
	},
}, {
	what: "a Service is created again", rules: "R5, R29, R30", subject: asNodePort(base(8)), to: []string{"clusterIP", "nodePort"},
	changes: []change{
		{what: "unchanged", edit: func(s *Subject) { s.Created++ }, between: goneBetween},
		{what: "with other names of ports and endpoints", edit: func(s *Subject) {
			s.Created++
			s.Suffix, s.SliceSuffixes, s.Endpoints = "-new", []string{"-new"}, ready("a3", "b2")
		}, between: goneBetween, udp: ends},
		{what: "with only UDP", edit: func(s *Subject) { s.Created++; s.Ports = "udp" }, between: goneBetween},
		{what: "with another type", edit: func(s *Subject) { s.Created++; s.Ports, s.Type, s.External = "tcp+udp", "ClusterIP", "" }, between: goneBetween},
	},
}, {
	what: "policies", rules: "R10, R16, R18, R27", subject: asNodePort(base(9)), to: []string{"clusterIP", "nodePort"},
	changes: []change{
		{what: "internalTrafficPolicy becomes Local", edit: func(s *Subject) { s.Internal = "Local" }, udp: lives},
		{what: "externalTrafficPolicy becomes Local", edit: func(s *Subject) { s.External = "Local" }, udp: lives},
		{what: "the local endpoint is removed", edit: func(s *Subject) { s.Endpoints = ready("b1") }},
		{what: "internalTrafficPolicy becomes Cluster", edit: func(s *Subject) { s.Internal = "Cluster" }, udp: lives},
		{what: "externalTrafficPolicy becomes Cluster", edit: func(s *Subject) { s.External, s.Endpoints = "Cluster", ready("a2", "b1", "b2") }, udp: lives},
		{what: "session affinity comes", edit: func(s *Subject) { s.Sticky = true }, udp: lives},
		{what: "an endpoint is removed", edit: func(s *Subject) { s.Endpoints = ready("a2", "b1") }},
		{what: "session affinity goes", edit: func(s *Subject) { s.Sticky = false }, udp: lives},
	},
}}

var sliceStories = []story{{
	what: "an endpoint on its way", rules: "R9, R10, R12", subject: base(10), to: []string{"clusterIP"},
	changes: []change{
		{what: "ready, and draining", edit: states2("ready", "draining"), udp: lives},
		{what: "both draining", edit: states2("draining", "draining"), udp: lives},
		{what: "draining, and terminating", edit: states2("draining", "terminating")},
		{what: "draining, and gone", edit: func(s *Subject) { s.Endpoints = s.Endpoints[:1] }, udp: lives},
		{what: "terminating", edit: func(s *Subject) { s.Endpoints[0].State = "terminating" }, udp: ends},
		{what: "gone", edit: func(s *Subject) { s.Endpoints = nil }},
		{what: "both back, as published", edit: func(s *Subject) { s.Endpoints = ready("a2", "b1"); states2("published", "published")(s) }},
		{what: "one not ready", edit: states2("ready", "not ready")},
	},
}, {
	// The only endpoint is always in a slice, unless noted.
	what: "the only endpoint moves", rules: "R6", subject: inLayout(base(11, "a2"), []int{0}), to: []string{"clusterIP"},
	changes: []change{
		{what: "to a second slice, before it leaves the first", edit: layout([]int{}, []int{0}), order: inSlices(1, 0), udp: lives},
		{what: "to a third slice, and the others are removed", edit: layout(nil, nil, []int{0}), order: inSlices(2, 0, 1), udp: lives},
		{what: "and is in two", edit: layout([]int{0}, nil, []int{0}), udp: lives},
		{what: "and in one of them", edit: layout([]int{0}), udp: lives},
		{what: "to another, after it was removed from the first", edit: layout([]int{}, []int{0}), order: inSlices(0, 1), between: refusedBetween},
		{what: "and back, and the other is removed at once", edit: layout([]int{0}), order: inSlices(1, 0), between: refusedBetween},
	},
}, {
	what: "slices are split and merged", rules: "R6", subject: inLayout(base(12, "a2", "b1", "b2"), []int{0, 1, 2}), to: []string{"clusterIP"},
	changes: splitAndMerge(),
}}

// splitAndMerge moves three endpoints between three slices, with each order of the writes.
func splitAndMerge() []change {
	all := []change{{what: "split in three", edit: layout([]int{0}, []int{1}, []int{2}), order: inSlices(1, 2, 0), udp: lives}}
	for i, places := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		next := layout([]int{2}, []int{0}, []int{1})
		if i%2 == 1 {
			next = layout([]int{0, 1}, []int{2}, []int{})
		}
		all = append(all, change{what: "moved about", edit: next, order: inSlices(places...), between: endedBetween})
	}
	return append(all, change{what: "merged", edit: layout([]int{0, 1, 2}), order: inSlices(0, 1, 2), udp: lives})
}

// endedBetween admits no answer other than those before and after. But between two writes an endpoint may be in
// no slice, and a connected UDP socket is aborted with it (R29).
func endedBetween(Observation) bool { return false }

func asNodePort(s Subject) Subject {
	s.Type, s.External = "NodePort", "Cluster"
	return s
}

func inFamilies(s Subject, families string) Subject {
	s = asNodePort(s)
	s.Families = families
	return s
}

func inLayout(s Subject, places ...[]int) Subject {
	s.Layout = places
	return s
}

// layout is an edit of the Layout.
func layout(places ...[]int) func(*Subject) { return func(s *Subject) { s.Layout = places } }

// states2 is an edit of the states of two endpoints.
func states2(first, second string) func(*Subject) {
	return func(s *Subject) { s.Endpoints[0].State, s.Endpoints[1].State = first, second }
}

// dualStack adds and removes a family, with the Service first and with the slices first.
func dualStack(single, dual string) []change {
	two, one := func(s *Subject) { s.Families = dual }, func(s *Subject) { s.Families = single }
	return []change{
		{what: single + " becomes " + dual + ", slices first", edit: two, order: slices.Reverse[[]write], udp: lives},
		{what: dual + " becomes " + single + ", Service first", edit: one},
		{what: single + " becomes " + dual + ", Service first", edit: two, between: refusedBetween, udp: lives},
		{what: dual + " becomes " + single + ", slices first", edit: one, order: slices.Reverse[[]write], between: refusedBetween},
	}
}

// slicesLast puts the writes of the Service first.
func slicesLast(writes []write) {
	slices.SortStableFunc(writes, func(a, b write) int { return min(a.slice, 0) - min(b.slice, 0) })
}

// numberQuestions probe the known port and the other one, from sockets that learn of a refusal at once.
func numberQuestions() (all []Probe) {
	for _, p := range questions("clusterIP", "nodePort") {
		if p.Protocol == "tcp" || p.Socket == "unconnected" {
			other := p
			other.Port = "unknown"
			all = append(all, p, other)
		}
	}
	return all
}
