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

// meetings are the backends that clients have reached since session affinity was switched on: the first one,
// and those that they had to reach because an address does not lead to the first. A wandering client's backend
// is not added, so the client still wanders when it asks again.
type meetings struct {
	mu  sync.Mutex
	all [2]map[clientOf][]string // by side
}

// stays is the stickiness of an outcome. A client with a single backend must get it at each address of the
// Service that leads there.
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

// wanders reports whether an outcome is a client's that did not stay.
func (o Outcome) wanders() bool { return slices.Contains(o, Observation{Result: wandering}) }

// oneClient reports whether the side takes the client for the same as in the other cases of its host. To
// kube-proxy an address is a client, and the node's address depends on its destination; to Beeline a client
// whose packets the edge handles is a client of its own. Either Service may serve an address that both claim.
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

// stickiness is an outcome with session affinity, after one without it. If some endpoints do not exist, a
// client may stay with one of these.
func stickiness(now, before Outcome) Outcome {
	if len(now) != 1 || len(now.endpoints()) != 1 || len(before.endpoints()) < 2 || !slices.Contains(before, now[0]) {
		return now
	}
	return Outcome{{Result: sticky}}
}

// byClient groups cases that can run concurrently. Those of one client cannot, because its backend at one
// address of a Service with session affinity determines the next.
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
