// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/google/go-cmp/cmp"
)

// random makes objects of a small world, so that they meet: few names, few
// addresses, few ports.
type random struct{ *rand.Rand }

func (r random) oneOf(words ...string) string { return words[r.IntN(len(words))] }

func (r random) maybe(percent int) bool { return r.IntN(100) < percent }

func (r random) some(n int, make func() string) []string {
	var out []string
	for range r.IntN(n + 1) {
		out = append(out, make())
	}
	return out
}

func (r random) service() Object {
	i := r.IntN(5)
	options := []serviceOption{created(int64(r.IntN(3)))}
	ip4, ip6 := fmt.Sprintf("10.0.0.%d", i+1), fmt.Sprintf("fd00::%d", i+1)
	switch r.IntN(8) {
	case 0:
		options = append(options, clusterIP("None"))
	case 1:
		options = append(options, clusterIP("10.0.0.1")) // another's, perhaps
	case 2, 3:
		options = append(options, clusterIP(ip4))
	default:
		options = append(options, clusterIP(ip4, ip6))
	}
	port := func(name string) corev1.ServicePort {
		p := corev1.ServicePort{Name: name, Port: int32(80 + r.IntN(2)), Protocol: corev1.Protocol(r.oneOf("TCP", "UDP"))}
		if r.maybe(50) {
			p.NodePort = int32(30080 + r.IntN(3))
		}
		return p
	}
	options = append(options, ports(port("http"), port(r.oneOf("http", "dns"))))
	external := func() string { return r.oneOf(vip, "203.0.113.2", vip6, hereIP, thereIP) }
	for _, o := range []serviceOption{
		eTPLocal, iTPLocal, clientIP, proxyName(r.oneOf("other", "beeline")),
		loadBalancer(r.some(2, external)...), externalIPs(r.some(2, external)...),
		sources(r.some(2, func() string { return r.oneOf("192.0.2.0/24", "10.0.0.0/8", "0.0.0.0/0", "2001:db8::/32") })...),
	} {
		if r.maybe(30) {
			options = append(options, o)
		}
	}
	return service(fmt.Sprintf("s%d", i), options...)
}

func (r random) slice() Object {
	zones, nodes := r.maybe(40), r.maybe(20)
	lines := r.some(4, func() string {
		line := r.oneOf("a", "b", "c", "d", "e") + r.oneOf("", " here", " there") + r.oneOf("", "", "", " notready", " notserving", " terminating", " terminating notserving")
		if zones {
			line += r.oneOf("", " zone=east", " zone=west", " zone=east zone=west", " zone=east")
		}
		if nodes {
			line += r.oneOf(" node=here", " node=there")
		}
		return line
	})
	options := []sliceOption{of(fmt.Sprintf("s%d", r.IntN(5)))}
	if r.maybe(30) {
		options = append(options, ipv6)
	}
	if r.maybe(30) {
		options = append(options, udp)
	}
	if r.maybe(20) {
		options = append(options, func(s *discoveryv1.EndpointSlice) { s.Ports[0].Name = new("dns") })
	}
	if r.maybe(30) {
		options = append(options, weight(r.oneOf("0", "1", "7")))
	}
	return slice(fmt.Sprintf("slice%d", r.IntN(10)), lines, options...)
}

func (r random) pod() Object {
	p := pod(fmt.Sprintf("p%d", r.IntN(3)), int64(r.IntN(3)))
	for range r.IntN(3) {
		p.Spec.Containers[0].Ports = append(p.Spec.Containers[0].Ports, hostPort(
			r.oneOf("", "", hereIP, "127.0.0.1", "198.51.100.1"), int32(30080+r.IntN(2)), 8080, corev1.Protocol(r.oneOf("TCP", "UDP"))))
	}
	p.Spec.NodeName = r.oneOf("here", "here", "there")
	p.Status.Phase = corev1.PodPhase(r.oneOf("Running", "Running", "Failed"))
	podIPs(r.some(2, func() string { return r.oneOf("10.1.0.1", "10.1.0.2", "fd01::1") })...)(p)
	return convertPod(p)
}

func (r random) node() Object {
	return &Node{
		Name:      r.oneOf("here", "there"),
		Zone:      r.oneOf("", "east", "west"),
		Addresses: addrs(r.some(3, func() string { return r.oneOf(hereIP, hereIP6, thereIP, vip) })...),
	}
}

func (r random) object() Object {
	switch n := r.IntN(20); {
	case n < 7:
		return r.service()
	case n < 14:
		return r.slice()
	case n < 17:
		return r.pod()
	case n < 19:
		return r.node()
	}
	return serviceCIDR(r.oneOf("kubernetes", "more"), r.some(2, func() string { return r.oneOf("10.0.0.0/16", "fd00::/108") })...)
}

func (r random) localAddresses() []netip.Addr {
	return addrs(r.some(3, func() string { return r.oneOf(hereIP, "198.51.100.1", hereIP6, vip, "127.0.0.1") })...)
}

func (r random) config() Config {
	c := testConfig()
	c.RefuseForeignExternalIPs, c.RefuseOutsideClusterIP = r.maybe(50), r.maybe(30)
	c.LocalhostNodePorts, c.MasqueradeAll = r.maybe(50), r.maybe(30)
	c.ServiceProxyName = r.oneOf("", "beeline")
	c.NodePortAddresses = prefixes(r.some(2, func() string { return r.oneOf("192.0.2.0/24", "198.51.100.0/24", "::/0") })...)
	return c
}

// world is what objects and addresses there are.
type world struct {
	objects map[Ref]Object
	local   []netip.Addr
}

func (w *world) apply(cs []Change) {
	for _, c := range cs {
		if c.Object == nil {
			delete(w.objects, c.Ref)
		} else {
			w.objects[c.Ref] = c.Object
		}
	}
}

// table computes everything from nothing.
func (w *world) table(config Config) *Table {
	t := NewTable(config)
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

// snapshot has the plans, copied far enough that a Table which alters one is
// found out.
func snapshot(t *Table) map[Ref]*Plan {
	plans := map[Ref]*Plan{}
	for ref, p := range t.Owners() {
		plans[ref] = &Plan{slices.Clone(p.Frontends), slices.Clone(p.Sets), slices.Clone(p.Draining), slices.Clone(p.Problems)}
	}
	return plans
}

func diffPlans(want, got map[Ref]*Plan) string {
	if reflect.DeepEqual(want, got) {
		return "" // the quick way
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
	for _, seed := range seeds {
		property(t, random{rand.New(rand.NewPCG(seed, 0))})
		if t.Failed() {
			t.Fatalf("to repeat: SEED=%d go test -run %s", seed, t.Name())
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
		want := snapshot(w.table(config))
		for range 5 {
			last := changes(slices.Collect(maps.Values(w.objects))...)
			r.Shuffle(len(last), func(i, j int) { last[i], last[j] = last[j], last[i] })
			table := NewTable(config)
			// Other states come first; each object's last state comes some time.
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

// everything has the Refs of all that the table keeps.
func (t *Table) everything() map[Ref]bool {
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
		table := NewTable(config)
		before, cidrs := snapshot(table), table.ServiceCIDRs()
		for range 60 {
			var d Delta
			var concerned map[Ref]bool
			if r.maybe(10) {
				w.local = r.localAddresses()
				concerned = w.withRivals(config, w.dependOnNodes())
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
				t.Fatalf("incremental is not full:\n%s", diff)
			}
			if diff := cmp.Diff(full.ServiceCIDRs(), table.ServiceCIDRs(), compareValues); diff != "" {
				t.Fatal(diff)
			}
			if (d.ServiceCIDRs != nil) != !slices.Equal(cidrs, table.ServiceCIDRs()) {
				t.Fatalf("ServiceCIDRs from %v to %v: delta %v", cidrs, table.ServiceCIDRs(), d.ServiceCIDRs)
			}
			checkDelta(t, before, after, d)
			if d.Resolved > len(concerned) {
				t.Fatalf("resolved %d, but only %d are concerned: %v", d.Resolved, len(concerned), concerned)
			}
			checkSound(t, table)
			before, cidrs = after, table.ServiceCIDRs()
			if t.Failed() {
				return
			}
		}
	})
}

// checkDelta wants exactly the plans that differ.
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

// concerned has the Services and Pods that a batch can make a difference to:
// those that it names, those that read of nodes if it names one, and those that
// want an address which one of these wants.
func (w *world) concerned(config Config, batch []Change) map[Ref]bool {
	direct := map[Ref]bool{}
	for _, c := range batch {
		switch c.Ref.Kind {
		case KindService, KindPod:
			direct[c.Ref] = true
		case KindNode:
			maps.Copy(direct, w.dependOnNodes())
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

func (w *world) dependOnNodes() map[Ref]bool {
	all := map[Ref]bool{}
	for ref, o := range w.objects {
		switch o := o.(type) {
		case *Pod:
			if len(o.HostPorts) > 0 {
				all[ref] = true
			}
		case *Service:
			if len(o.ExternalIPs) > 0 || len(o.SourceRanges) > 0 || slices.ContainsFunc(o.Ports, func(p ServicePort) bool { return p.NodePort > 0 }) {
				all[ref] = true
			}
		case *EndpointSlice:
			if slices.ContainsFunc(o.Endpoints, func(e Endpoint) bool { return len(e.ZoneHints) > 0 }) {
				all[o.serviceRef()] = true
			}
		}
	}
	return all
}
