// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"context"
	"fmt"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"beeline.io/beeline/test/cluster"
)

// clientOf is a client of a Service's port (R27).
type clientOf struct {
	scenario               int
	from, family, protocol string
}

// meetings are the backends that clients have met since session affinity is on:
// the first, and those that they had to meet because an address does not lead to
// the first. One that was met by wandering is none of them, so that whoever
// wanders still does when asked again.
type meetings struct {
	mu  sync.Mutex
	all [2]map[clientOf][]string // by side
}

// stays is the stickiness of an outcome. A client that has met one backend alone
// meets it again at each address of the Service that leads there.
func (m *meetings) stays(side int, c *Case, now, before Outcome) Outcome {
	outcome := stickiness(now, before)
	if !oneClient(side, c) {
		return outcome
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.all[side] == nil {
		m.all[side] = map[clientOf][]string{}
	}
	key := clientOf{c.Scenario.Number, c.Probe.From, c.Probe.Family, c.Probe.Protocol}
	met := m.all[side][key]
	stayed := len(outcome) == 1 && outcome[0].Result == sticky
	if stayed && len(met) == 1 && slices.Contains(before.endpoints(), met[0]) && now.endpoints()[0] != met[0] {
		return Outcome{{Result: wandering}}
	}
	for _, backend := range now.endpoints() {
		if !slices.Contains(met, backend) {
			met = append(met, backend)
		}
	}
	m.all[side][key] = met
	return outcome
}

// wanders says whether an outcome is that of a client that did not stay.
func (o Outcome) wanders() bool { return slices.Contains(o, Observation{Result: wandering}) }

// oneClient says whether the side takes the client for the same as in the other
// cases of its host. To kube-proxy an address is a client, and that of the node
// depends on what it asks; to Beeline what a socket leaves to the packet is a client
// of its own. An address that two Services ask for is served by either.
func oneClient(side int, c *Case) bool {
	if c.Probe.To == "contested" || c.Probe.Port != "known" {
		return false
	}
	facts := c.Facts()
	if side == 1 {
		return facts["decided"] == "socket" || facts["from"] != "node" && facts["from"] != "pod"
	}
	return c.Probe.From != judged && c.Probe.Socket != "second"
}

// stickiness is an outcome with session affinity, after that without it. Where
// endpoints are of nobody, a client can stay with one of these.
func stickiness(now, before Outcome) Outcome {
	if len(now) != 1 || len(now.endpoints()) != 1 || len(before.endpoints()) < 2 || !slices.Contains(before, now[0]) {
		return now
	}
	return Outcome{{Result: sticky}}
}

// byClient are cases that can be asked at once. Those of one client are not, for
// what it is told at one address of a Service with session affinity is what it
// is told at the next.
func byClient(cases []*Case) [][]*Case {
	var list [][]*Case
	place := map[clientOf]int{}
	for _, c := range cases {
		key := clientOf{c.Scenario.Number, c.Probe.From, c.Probe.Family, c.Probe.Protocol}
		if i, known := place[key]; known && c.Sticky {
			list[i] = append(list[i], c)
			continue
		}
		place[key] = len(list)
		list = append(list, []*Case{c})
	}
	return list
}

// switchAffinityOn gives the Services of cases session affinity.
func (j *Judge) switchAffinityOn(ctx context.Context, cases []*Case) error {
	client := j.Pair.Cluster.Client.CoreV1().Services(cluster.Namespace)
	err := inParallel(writers, scenariosOf(cases), func(s *Scenario) error {
		object, err := client.Get(ctx, s.Name(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		_, err = client.Update(ctx, WithAffinity(object), metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("switching session affinity on: %w", err)
	}
	return j.Pair.Await(ctx)
}
