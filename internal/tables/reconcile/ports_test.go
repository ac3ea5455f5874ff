// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
)

// shouldReserve returns the ports of the NodePorts and HostPorts that a program can reach, independently of
// the Syncer.
func (k *fakeKernel) shouldReserve() map[bpf.ReservedPort]bool {
	ports := map[bpf.ReservedPort]bool{}
	for key, row := range k.index.entries {
		switch service.FrontendKind(k.rows.rows[row].Kind) {
		case service.NodePort, service.HostPort:
			version := uint8(6)
			if key.Address.Addr().Is4() {
				version = 4
			}
			ports[bpf.ReservedPort{Port: key.Port, Protocol: key.Protocol, IpVersion: version}] = true
		}
	}
	return ports
}

// mustReserve (K5): no NodePort or HostPort is reachable while a program on the host could bind its port.
func (k *fakeKernel) mustReserve(t *testing.T) {
	t.Helper()
	for port := range k.shouldReserve() {
		if _, ok := k.reserved.entries[port]; !ok {
			t.Errorf("%v is served and not reserved", port)
		}
	}
}

// mustReserveOnly: ports that are not served are free.
func (k *fakeKernel) mustReserveOnly(t *testing.T) {
	t.Helper()
	k.mustReserve(t)
	served := k.shouldReserve()
	for port := range k.reserved.entries {
		if !served[port] {
			t.Errorf("%v is reserved and not served", port)
		}
	}
}

// publicPlan returns a NodePort on two addresses of the node.
func publicPlan(owner service.Ref, number int, port uint16) *service.Plan {
	plan := simplePlan(owner, number, 1)
	for i := range 2 {
		f := plan.Frontends[0]
		f.Key.Addr, f.Key.Port = netip.AddrFrom4([4]byte{192, 168, byte(number), byte(i + 1)}), port
		f.Kind = service.NodePort
		plan.Frontends = append(plan.Frontends, f)
	}
	return plan
}

var reservedHere = bpf.ReservedPort{Port: bpf.NetworkOrder(30080), Protocol: 6, IpVersion: 4}

// TestPortIsReservedUntilItsLastFrontendGoes: a NodePort has two addresses, and then one of them.
func TestPortIsReservedUntilItsLastFrontendGoes(t *testing.T) {
	k := newFakeKernel(t, bpf.Limits{})
	s := newSyncer(t, k)
	owner := ref("public")
	both := publicPlan(owner, 0, 30080)
	one := publicPlan(owner, 0, 30080)
	one.Frontends = one.Frontends[:2]
	puts := 0
	k.before = func(operation string) error {
		if strings.HasPrefix(operation, "put "+bpf.SockMapReservedPorts) {
			puts++
		}
		return nil
	}
	for i, step := range []struct {
		plan           *service.Plan
		reserved, puts int
	}{{both, 1, 1}, {one, 1, 0}, {both, 1, 0}, {publicPlan(owner, 0, 30081), 1, 1}, {simplePlan(owner, 0, 1), 0, 0}, {both, 1, 1}, {nil, 0, 0}} {
		puts = 0
		mustApply(t, s, service.Delta{Plans: map[service.Ref]*service.Plan{owner: step.plan}})
		mustCollect(t, s)
		k.mustReserveOnly(t)
		if len(k.reserved.entries) != step.reserved || puts != step.puts {
			t.Errorf("step %d: reserved are %v after %d writes, want %d after %d", i, k.reserved.entries, puts, step.reserved, step.puts)
		}
	}
}

// TestPortOfBothFamilies: IPv4 and IPv6, TCP and UDP have four different ports.
func TestPortOfBothFamilies(t *testing.T) {
	k := newFakeKernel(t, bpf.Limits{})
	s := newSyncer(t, k)
	plan := publicPlan(ref("public"), 0, 30080)
	node := plan.Frontends[1:]
	node[1].Key.Addr = netip.MustParseAddr("fd00:100::1")
	for _, set := range plan.Sets {
		set.Key.Family = service.IPv6
		plan.Sets = append(plan.Sets, set)
	}
	for _, f := range node {
		f.Key.Protocol = service.UDP
		plan.Frontends = append(plan.Frontends, f)
	}
	mustApply(t, s, service.Delta{Plans: map[service.Ref]*service.Plan{ref("public"): plan}})
	want := map[bpf.ReservedPort]uint32{}
	for _, version := range []uint8{4, 6} {
		for _, protocol := range []uint8{6, 17} {
			want[bpf.ReservedPort{Port: reservedHere.Port, Protocol: protocol, IpVersion: version}] = 1
		}
	}
	if diff := cmp.Diff(want, k.reserved.entries); diff != "" {
		t.Errorf("wanted (-) and reserved (+):\n%s", diff)
	}
}

// TestReservedPortsFull: a NodePort whose port cannot be reserved is not served, reports that, and is
// applied when there is room.
func TestReservedPortsFull(t *testing.T) {
	k := newFakeKernel(t, bpf.Limits{})
	k.reserved.max = 1
	s := newSyncer(t, k)
	first, second := ref("s0"), ref("s1")
	mustApply(t, s, service.Delta{Plans: map[service.Ref]*service.Plan{first: publicPlan(first, 0, 30080)}})
	err := s.Apply(service.Delta{Plans: map[service.Ref]*service.Plan{second: publicPlan(second, 1, 30081)}})
	if full := (*bpf.FullError)(nil); !errors.As(err, &full) || full.Table != bpf.SockMapReservedPorts {
		t.Errorf("the error is %v", err)
	}
	k.mustReserveOnly(t)
	for _, st := range s.Status() {
		if want := map[service.Ref]State{first: Applied, second: Failed}[st.Owner]; st.State != want {
			t.Errorf("%s is %s, want %s", st.Owner, st.State, want)
		}
	}
	s.Apply(service.Delta{Plans: map[service.Ref]*service.Plan{first: nil}})
	s.CollectGarbage()
	if _, err := s.Retry(time.Now().Add(time.Minute)); err != nil {
		t.Errorf("with the first gone there is room: %v", err)
	}
	k.mustReserveOnly(t)
	if len(k.reserved.entries) != 1 {
		t.Errorf("reserved are %v", k.reserved.entries)
	}
}

// TestReservationThatCannotBeGivenBack: freeing a reservation is retried.
func TestReservationThatCannotBeGivenBack(t *testing.T) {
	k := newFakeKernel(t, bpf.Limits{})
	s := newSyncer(t, k)
	owner := ref("public")
	mustApply(t, s, service.Delta{Plans: map[service.Ref]*service.Plan{owner: publicPlan(owner, 0, 30080)}})
	k.before = func(operation string) error {
		if strings.HasPrefix(operation, "delete "+bpf.SockMapReservedPorts) {
			return fmt.Errorf("%s: %w", operation, errFault)
		}
		return nil
	}
	mustApply(t, s, service.Delta{Plans: map[service.Ref]*service.Plan{owner: nil}})
	if left, err := s.CollectGarbage(); !left || !errors.Is(err, errFault) {
		t.Errorf("collect: left %v, %v", left, err)
	}
	k.before = nil
	mustCollect(t, s)
	k.mustReserveOnly(t)
}
