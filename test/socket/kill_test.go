// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/tables/reconcile"
)

const kills = 16

// R37: an agent that is killed at any moment, during many changes, leaves a state that serves; the next one
// recovers the same IDs and makes the tables what the manifests say. Connections are not affected.
func TestKilledAtRandom(t *testing.T) {
	w := newWorld(t, "node-a")
	w.agent().Flags = []string{"--audit-interval=50ms"}
	w.start()
	w.write("steady", objects(w.sticky("steady", 200, "a2 b1", 600))...)
	w.apply("plain", objects(w.web("plain", 201, "a2 b1"))...)
	held := w.hold(clients, 201)
	ids := w.idsOf("default/steady", "default/plain")
	// A kill leaves a state that lasts until the next start, half a second: a few hundred connections meet it, and
	// the agents get the CPU.
	loads := []*load{
		w.startPacedLoad("plain", w.hosts("a1"), ipv4, ipv4.clusterIP(201), "a2 b1"),
		w.startPacedLoad("plain", w.hosts("a3"), ipv6, ipv6.clusterIP(201), "a2 b1"),
		w.startPacedLoad("sticky", w.hosts("node-a"), v4Mapped, v4Mapped.clusterIP(200), pick(t, w.Host("node-a"), ipv4, ipv4.clusterIP(200))),
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	tables, err := bpf.OpenTables(w.agent().BPFFS())
	w.must(err)
	before := w.frontends(tables)
	for i := range kills {
		if i%2 == 0 {
			for range r.IntN(4) {
				w.write("churn", w.churn(r)...)
				time.Sleep(time.Duration(r.IntN(90)) * time.Millisecond)
			}
		} else {
			w.awaitChange(tables, before)
			time.Sleep(time.Duration(r.IntN(8)) * time.Millisecond)
		}
		w.must(w.agent().Kill())
		if now := w.idsOf("default/steady", "default/plain"); now != ids {
			t.Fatalf("the tables have\n%s\nwant, as before,\n%s", now, ids)
		}
		w.write("churn", w.churn(r)...)
		before = w.frontends(tables)
		w.must(w.agent().StartOnly())
	}
	w.must(w.folder.Await(w.agent()))
	w.wantAlive(t, "after all kills", held)
	for _, l := range loads {
		l.wantNoFailure(t)
	}
	if now := w.idsOf("default/steady", "default/plain"); now != ids {
		t.Errorf("the tables have\n%s\nwant, as before,\n%s", now, ids)
	}
	w.wantLikeFresh(t)
}

// frontends is the tables' index.
func (w *world) frontends(tables *bpf.Tables) map[bpf.FrontendKey]uint32 {
	w.t.Helper()
	all, err := tables.Frontends.All()
	w.must(err)
	return all
}

// awaitChange returns as soon as the agent has begun to change the tables, given their state before it was
// started.
func (w *world) awaitChange(tables *bpf.Tables, before map[bpf.FrontendKey]uint32) {
	w.t.Helper()
	for begun := time.Now(); ; {
		asked := time.Now()
		if !maps.Equal(w.frontends(tables), before) {
			return
		}
		if time.Since(begun) > patience {
			w.t.Fatalf("the tables have not changed after %v", patience)
		}
		time.Sleep(2 * time.Since(asked)) // the agent gets the CPU
	}
}

// churn makes a dozen Services of all kinds with up to twenty ports, and endpoints that nothing else has: about
// two thousand frontends. No two states have much in common, so a change takes the agent some time.
func (w *world) churn(r *rand.Rand) []runtime.Object {
	var all []runtime.Object
	pods := []string{"", "a3", "b2", "b3", "a3 b2", "b2 b3", "a3 b2 b3"}
	for n := range uint8(12) {
		if r.IntN(4) == 0 {
			continue
		}
		s, slices := w.sticky(fmt.Sprintf("churn%d", n), n+1, pods[r.IntN(len(pods))], 1+r.Int32N(100))
		if r.IntN(2) == 0 {
			s.Spec.SessionAffinity, s.Spec.SessionAffinityConfig = corev1.ServiceAffinityNone, nil
		}
		if r.IntN(2) == 0 {
			s.Spec.LoadBalancerSourceRanges = []string{fmt.Sprintf("10.%d.0.0/16", r.IntN(5)), fmt.Sprintf("fd00:%d::/32", r.IntN(5))}
		}
		for _, slice := range slices {
			slice.Annotations = map[string]string{service.AnnotationWeight: fmt.Sprint(1 + r.IntN(5))}
			slice.Ports = nil
		}
		s.Spec.Ports = nil
		for p := range 1 + r.Int32N(20) {
			port := corev1.ServicePort{Name: fmt.Sprintf("p%d", p), Protocol: corev1.ProtocolTCP, Port: 80 + p, NodePort: 30000 + int32(n)*100 + p}
			s.Spec.Ports = append(s.Spec.Ports, port)
			target := 8000 + r.Int32N(10)
			for _, slice := range slices {
				slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &port.Name, Port: &target, Protocol: &port.Protocol})
			}
		}
		all = append(all, objects(s, slices)...)
	}
	return all
}

// idsOf describes some Services in the pinned tables, IDs included.
func (w *world) idsOf(names ...string) string {
	w.t.Helper()
	text := ""
	for _, name := range names {
		out, err := w.agent().CLI("service", "show", name, "-o", "json", "--pins")
		w.must(err)
		text += w.uncounted(out)
	}
	return text
}

// wantLikeFresh compares an agent with a long history with one that reads the same manifests for the first
// time: the tables are the same except for the IDs, hold no more, and need no repair.
func (w *world) wantLikeFresh(t *testing.T) {
	t.Helper()
	old := w.agent()
	fresh := w.newAgent(old.Host)
	fresh.Name = "fresh"
	// Its programs see no process: the fabric's cgroup is empty.
	fresh.Flags = []string{"--cgroup-root", w.Host("fabric").Cgroup}
	w.must(fresh.Start())
	w.must(w.folder.Await(fresh)) // it is ready before the networks are in the tables
	status, err := fresh.Status()
	w.must(err)
	want, err := tablesOf(fresh.Socket())
	w.must(err)
	got, err := tablesOf(old.Socket())
	w.must(err)
	if got != want {
		t.Errorf("the tables hold\n%s\nwant, as of a fresh agent,\n%s", got, want)
	}
	used := func(s *api.Status) map[string]uint32 {
		m := map[string]uint32{}
		for _, f := range s.Tables {
			if f.Table != "affinity" { // holds clients, and does not follow from manifests
				m[f.Table] = f.Used
			}
		}
		return m
	}
	w.must(old.WaitFor(fmt.Sprintf("holding no more than a fresh agent: %v", used(status)), func(s *api.Status) bool {
		return fmt.Sprint(used(s)) == fmt.Sprint(used(status)) && !s.Sync.LastAudit.IsZero()
	}))
	now, err := old.Status()
	w.must(err)
	if now.Sync.Repairs != 0 || now.Sync.Failing != 0 || now.Sync.Failures != 0 {
		t.Errorf("the audit found differences in the tables: %+v", now.Sync)
	}
}

// tablesOf describes an agent's tables, without the IDs.
func tablesOf(socket string) (string, error) {
	var tables api.Tables
	if err := api.NewClient(socket).Get(context.Background(), api.TablesPath, &tables); err != nil {
		return "", err
	}
	tables.Backends = nil
	for i := range tables.Services {
		s := &tables.Services[i]
		if s.State != reconcile.Applied {
			return "", fmt.Errorf("%s is %s: %v", s.Ref(), s.State, s.Reasons)
		}
		for j := range s.Frontends {
			f := &s.Frontends[j]
			f.ServiceID = 0
			for _, d := range []*api.Decision{&f.FromPods, &f.FromNode, &f.FromOutside} {
				for k := range d.Backends {
					d.Backends[k].ID = 0
				}
			}
		}
	}
	text, err := json.MarshalIndent(&tables, "", " ")
	return string(text), err
}

// An agent that is killed while it starts on a clean node leaves a state from which the next one starts, and
// which cleanup removes.
func TestKilledAtFirstStart(t *testing.T) {
	w := newWorld(t, "node-a")
	w.write("web", objects(w.web("web", 1, "b1"))...)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for i := range 12 {
		w.must(w.agent().StartOnly())
		time.Sleep(time.Duration(r.IntN(100)) * time.Millisecond)
		w.must(w.agent().Kill())
		if i%2 == 0 {
			w.start()
			w.wantMeet(t, clients, ipv4, ipv4.clusterIP(1), "b1")
			w.wantMeet(t, clients, ipv6, ipv6.clusterIP(1), "b1")
			w.must(w.agent().Stop())
		}
		if out, err := w.agent().CLI("cleanup"); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		w.wantNothingLeft(t, w.agent())
	}
}
