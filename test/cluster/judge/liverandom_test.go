// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"beeline.io/beeline/test/seed"
)

var (
	liveSeed    = seed.New("live.seed", "seed of the random live changes")
	liveChanges = flag.Int("live.changes", 40, "how many random live changes to make; with -short no more than 20")
)

// changesEach is the number of random changes before both sides are compared.
const changesEach = 4

// randomEdits are the possible changes, of any Subject.
var randomEdits = []func(*rand.Rand, *Subject){
	func(r *rand.Rand, s *Subject) {
		s.Type = pick(r, "ClusterIP", "NodePort", "LoadBalancer")
		s.External, s.Ingress = "", ""
		if s.Type != "ClusterIP" {
			s.External = "Cluster"
		}
		if s.Type == "LoadBalancer" {
			s.Ingress = "VIP"
		}
	},
	func(r *rand.Rand, s *Subject) {
		if s.External != "" {
			s.External = pick(r, "Cluster", "Local")
		}
	},
	func(r *rand.Rand, s *Subject) { s.Internal = pick(r, "Cluster", "Local") },
	func(r *rand.Rand, s *Subject) { s.Ports = pick(r, "tcp", "udp", "tcp+udp", "tcp+udp") },
	func(r *rand.Rand, s *Subject) {
		s.Suffix = pick(r, "", "-new")
		s.SliceSuffixes = []string{s.Suffix}
	},
	func(r *rand.Rand, s *Subject) { s.Families = pick(r, "v4v6", "v4v6", "v4") },
	func(r *rand.Rand, s *Subject) { s.Label = pick(r, "", "", "", "proxy", "headless") },
	func(_ *rand.Rand, s *Subject) { s.Created++ },
	func(_ *rand.Rand, s *Subject) { s.Sticky = true },
	func(r *rand.Rand, s *Subject) { s.Rename = pick(r, "", "one", "other") },
	func(r *rand.Rand, s *Subject) { s.Endpoints = randomEndpoints(r) },
	func(r *rand.Rand, s *Subject) { s.Endpoints = randomEndpoints(r) },
	func(r *rand.Rand, s *Subject) {
		s.Layout = [][]int{{}, {}, {}}
		for i := range s.Endpoints {
			n := r.IntN(len(s.Layout))
			s.Layout[n] = append(s.Layout[n], i)
		}
	},
}

func randomEndpoints(r *rand.Rand) []Endpoint {
	hosts := []string{"a2", "a3", "b1", "b2"}
	r.Shuffle(len(hosts), func(i, j int) { hosts[i], hosts[j] = hosts[j], hosts[i] })
	all := ready(hosts[:r.IntN(4)]...)
	for i := range all {
		all[i].State = pick(r, "ready", "ready", "draining", "terminating", "not ready", "published")
	}
	return all
}

// drawEdit makes a random change. The last one before a comparison removes session affinity, with which each
// client would reach only one backend.
func drawEdit(r *rand.Rand, s *Subject, last bool) {
	pick(r, randomEdits...)(r, s)
	s.Sticky = s.Sticky && !last
	placed := 0
	for _, members := range s.Layout {
		placed += len(members)
	}
	if placed != len(s.Endpoints) {
		s.Layout = nil
	}
}

// serving are the hosts of endpoints that may get new connections (R9 to R12).
func (s *Subject) serving() (hosts []string) {
	for _, e := range s.Endpoints {
		if e.State != "not ready" && e.State != "terminating" {
			hosts = append(hosts, e.Host)
		}
	}
	return hosts
}

// random makes random changes, with the writes of each in random order. In between, a connection may get any
// result that a verdict explains, or any endpoint that serves in one of the states; in the end both sides are
// the same.
func (l *live) random(t *testing.T) {
	from := liveSeed.Of(t)
	if testing.Short() {
		*liveChanges = min(*liveChanges, 20)
	}
	r := rand.New(rand.NewPCG(from, 0))
	start := base(15)
	subject, probes := &start, questions("clusterIP", "nodePort", "ingress")
	begin := time.Now()
	first, _ := l.begin(t, subject, probes)
	timeline := Timeline{first}
	loads := l.load(t.Context(), &subject.Scenario, probes, pace)
	for made := 0; made < *liveChanges; made += changesEach {
		hosts := subject.serving()
		verdict := resultOneOf(refused, denied, unreachable, misnamed)
		e := &Epoch{Begin: time.Now(), Between: func(o Observation) bool {
			return verdict(o) || o.Result == answered && slices.Contains(hosts, o.Backend)
		}}
		for n := range changesEach {
			next := subject.edited(func(s *Subject) { drawEdit(r, s, n+1 == changesEach) })
			l.write(t, subject, next, &change{what: fmt.Sprintf("%+v", *next), order: func(writes []write) { shuffle(r, writes) }})
			subject = next
			hosts = append(hosts, subject.serving()...)
		}
		e.Change, e.Written = fmt.Sprintf("%+v", *subject), time.Now()
		l.await(t, e)
		timeline = append(timeline, e)
		l.look(t, e, subject, probes, nil)
	}
	seen := stop(t, loads)
	l.write(t, subject, nowhere(subject), &change{what: "its end"})
	if failures := timeline.check(1, seen[1]); len(failures) > 0 {
		t.Errorf("%d of %d connections get an unexplained result:\n%s", len(failures), len(seen[1]), strings.Join(failures[:min(len(failures), shown)], "\n"))
	}
	t.Logf("%d changes in %v, %d connections on Beeline's side", *liveChanges, time.Since(begin).Round(time.Millisecond), len(seen[1]))
}

// shuffle puts writes into a random order, except for those of the Service.
func shuffle(r *rand.Rand, writes []write) {
	var service, others []write
	for _, w := range writes {
		if w.slice < 0 {
			service = append(service, w)
		} else {
			others = append(others, w)
		}
	}
	r.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
	at := 0
	if len(others) > 0 {
		at = r.IntN(len(others) + 1)
	}
	copy(writes, slices.Concat(others[:at], service, others[at:]))
}
