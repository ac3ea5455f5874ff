// SPDX-License-Identifier: Apache-2.0

package service

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// world holds the objects and addresses.
type world struct {
	objects map[Ref]Object
	local   []netip.Addr
}

func (w *world) apply(cs []Change) {
	for _, c := range cs {
		if c.Object == nil && c.Ref == here.Ref() {
			continue // R39
		}
		if c.Object == nil {
			delete(w.objects, c.Ref)
		} else {
			w.objects[c.Ref] = c.Object
		}
	}
}

// table computes everything from scratch.
func (w *world) table(config Config) *Cluster {
	t := NewCluster(config)
	t.SetLocalAddresses(w.local)
	t.Apply(changes(slices.Collect(maps.Values(w.objects))...))
	return t
}

func (r random) batch() []Change {
	var cs []Change
	for range 1 + r.IntN(4) {
		o := r.object()
		c := changes(o)[0]
		if r.maybe(25) {
			c = gone(o)
		}
		cs = append(cs, c)
	}
	return cs
}

// snapshot copies the plans deeply enough to detect a Cluster that modifies them.
func snapshot(t *Cluster) map[Ref]*Plan {
	plans := map[Ref]*Plan{}
	for ref, p := range t.Owners() {
		plans[ref] = &Plan{slices.Clone(p.Frontends), slices.Clone(p.Sets), p.TableSize, slices.Clone(p.Retained), slices.Clone(p.Problems), slices.Clone(p.HealthPorts), slices.Clone(p.Refusals), p.Created}
	}
	return plans
}

func diffPlans(want, got map[Ref]*Plan) string {
	if reflect.DeepEqual(want, got) {
		return "" // the fast path
	}
	return cmp.Diff(want, got, compareValues)
}

// withSeeds runs a property with many seeds; SEED=n repeats one.
func withSeeds(t *testing.T, n uint64, property func(*testing.T, random)) {
	t.Helper()
	seeds := []uint64{}
	if s, err := strconv.ParseUint(os.Getenv("SEED"), 10, 64); err == nil {
		seeds = append(seeds, s)
	} else {
		for range n {
			seeds = append(seeds, rand.Uint64())
		}
	}
	var seed uint64
	defer func() { // also if the property ends the test
		if t.Failed() {
			t.Logf("to repeat: SEED=%d go test -run %s", seed, t.Name())
		}
	}()
	for _, seed = range seeds {
		if property(t, random{rand.New(rand.NewPCG(seed, 0))}); t.Failed() {
			return
		}
	}
}

func TestOrderOfArrivalDoesNotMatter(t *testing.T) {
	withSeeds(t, 60, func(t *testing.T, r random) {
		config := r.config()
		w := world{objects: map[Ref]Object{}, local: r.localAddresses()}
		for range 12 {
			w.apply(r.batch())
		}
		w.apply(changes(here)) // otherwise the table's earlier state would stay in use (R39)
		want := snapshot(w.table(config))
		for range 5 {
			last := changes(slices.Collect(maps.Values(w.objects))...)
			r.Shuffle(len(last), func(i, j int) { last[i], last[j] = last[j], last[i] })
			table := NewCluster(config)
			// Earlier states come first; each object's last state is applied at some point.
			for range r.IntN(6) {
				table.Apply(r.batch())
				table.SetLocalAddresses(r.localAddresses())
			}
			var stale []Change
			for ref := range table.everything() {
				stale = append(stale, Change{Ref: ref})
			}
			table.Apply(stale)
			localAt := r.IntN(len(last) + 1)
			for i, c := range last {
				if i == localAt {
					table.SetLocalAddresses(w.local)
				}
				table.Apply([]Change{c})
			}
			table.SetLocalAddresses(w.local)
			if diff := diffPlans(want, snapshot(table)); diff != "" {
				t.Fatal(diff)
			}
			checkSound(t, table)
		}
	})
}

// everything returns the Refs of all objects in the table.
func (t *Cluster) everything() map[Ref]bool {
	all := map[Ref]bool{}
	for ref := range t.services {
		all[ref] = true
	}
	for ref := range t.slices {
		all[ref] = true
	}
	for ref := range t.pods {
		all[ref] = true
	}
	for name := range t.nodes {
		all[Ref{KindNode, "", name}] = true
	}
	for name := range t.cidrs {
		all[Ref{KindServiceCIDR, "", name}] = true
	}
	return all
}

func TestIncrementalEqualsFull(t *testing.T) {
	withSeeds(t, 40, func(t *testing.T, r random) {
		config := r.config()
		w := world{objects: map[Ref]Object{}}
		table := NewCluster(config)
		before, cidrs, pods, balancers := snapshot(table), table.ServiceCIDRs(), table.PodNetworks(), table.Balancers()
		for range 60 {
			var d Delta
			var concerned map[Ref]bool
			if r.maybe(10) {
				w.local = r.localAddresses()
				concerned = w.withRivals(config, w.dependOnNodes(config))
				d = table.SetLocalAddresses(w.local)
			} else {
				batch := r.batch()
				concerned = w.concerned(config, batch)
				w.apply(batch)
				maps.Copy(concerned, w.concerned(config, batch))
				d = table.Apply(batch)
			}
			full := w.table(config)
			after := snapshot(table)
			if diff := diffPlans(snapshot(full), after); diff != "" {
				t.Fatalf("incremental and full results differ:\n%s", diff)
			}
			if diff := cmp.Diff(full.ServiceCIDRs(), table.ServiceCIDRs(), compareValues); diff != "" {
				t.Fatal(diff)
			}
			if (d.ServiceCIDRs != nil) != !slices.Equal(cidrs, table.ServiceCIDRs()) {
				t.Fatalf("ServiceCIDRs from %v to %v: delta %v", cidrs, table.ServiceCIDRs(), d.ServiceCIDRs)
			}
			if diff := cmp.Diff(full.PodNetworks(), table.PodNetworks(), compareValues); diff != "" {
				t.Fatal(diff)
			}
			if (d.PodNetworks != nil) != !slices.Equal(pods, table.PodNetworks()) {
				t.Fatalf("pod networks from %v to %v: delta %v", pods, table.PodNetworks(), d.PodNetworks)
			}
			if diff := cmp.Diff(full.Balancers(), table.Balancers(), compareValues); diff != "" {
				t.Fatal(diff)
			}
			if (d.Balancers != nil) != !slices.Equal(balancers, table.Balancers()) {
				t.Fatalf("balancers from %v to %v: delta %v", balancers, table.Balancers(), d.Balancers)
			}
			checkDelta(t, before, after, d)
			if d.Resolved > len(concerned) {
				t.Fatalf("resolved %d, but only %d are concerned: %v", d.Resolved, len(concerned), concerned)
			}
			checkSound(t, table)
			before, cidrs, pods, balancers = after, table.ServiceCIDRs(), table.PodNetworks(), table.Balancers()
			if t.Failed() {
				return
			}
		}
	})
}

// checkDelta expects exactly the plans that differ.
func checkDelta(t *testing.T, before, after map[Ref]*Plan, d Delta) {
	t.Helper()
	want := map[Ref]*Plan{}
	for ref, p := range after {
		if !reflect.DeepEqual(before[ref], p) && !cmp.Equal(before[ref], p, compareValues) {
			want[ref] = p
		}
	}
	for ref := range before {
		if after[ref] == nil {
			want[ref] = nil
		}
	}
	if diff := diffPlans(want, d.Plans); diff != "" {
		t.Fatalf("delta: %s", diff)
	}
}

// concerned returns the Services and Pods that a batch can affect: those in it, those that depend on nodes if
// it contains one, and those that request an address that one of these requests.
func (w *world) concerned(config Config, batch []Change) map[Ref]bool {
	direct := map[Ref]bool{}
	for _, c := range batch {
		switch c.Ref.Kind {
		case KindService, KindPod:
			direct[c.Ref] = true
		case KindNode:
			maps.Copy(direct, w.dependOnNodes(config))
		case KindEndpointSlice:
			for _, o := range []Object{c.Object, w.objects[c.Ref]} {
				if s, ok := o.(*EndpointSlice); ok {
					direct[s.serviceRef()] = true
				}
			}
		}
	}
	return w.withRivals(config, direct)
}

func (w *world) withRivals(config Config, direct map[Ref]bool) map[Ref]bool {
	all := maps.Clone(direct)
	for _, rivals := range w.table(config).claims.rivals {
		if slices.ContainsFunc(rivals, func(c claim) bool { return direct[c.owner.ref] }) {
			for _, c := range rivals {
				all[c.owner.ref] = true
			}
		}
	}
	return all
}

func (w *world) dependOnNodes(config Config) map[Ref]bool {
	all := map[Ref]bool{}
	for ref, o := range w.objects {
		switch o := o.(type) {
		case *Pod:
			if len(o.HostPorts) > 0 {
				all[ref] = true
			}
		case *Service:
			if len(o.ExternalIPs) > 0 || len(o.IngressIPs) > 0 || slices.ContainsFunc(o.Ports, func(p ServicePort) bool { return p.NodePort > 0 }) {
				all[ref] = true
			}
		case *EndpointSlice:
			s, _ := w.objects[o.serviceRef()].(*Service)
			geneve := s != nil && config.sentToNodes(s)
			if slices.ContainsFunc(o.Endpoints, func(e Endpoint) bool { return len(e.hints().Zones) > 0 || e.Node == "" || geneve }) {
				all[o.serviceRef()] = true
			}
		}
	}
	return all
}
