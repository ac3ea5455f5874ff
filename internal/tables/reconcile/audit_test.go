// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"net/netip"
	"testing"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
)

var podNetwork = netip.MustParsePrefix("10.10.1.0/24")

// TestAuditRepairsDamage: changes by other programs are found, counted and repaired.
func TestAuditRepairsDamage(t *testing.T) {
	r := newRand(t)
	for name, damage := range map[string]func(k *fakeKernel, key bpf.FrontendKey, row uint32){
		"index entry removed":    func(k *fakeKernel, key bpf.FrontendKey, _ uint32) { delete(k.index.entries, key) },
		"index entry led astray": func(k *fakeKernel, key bpf.FrontendKey, row uint32) { k.index.entries[key] = row + 1 },
		"row changed":            func(k *fakeKernel, _ bpf.FrontendKey, row uint32) { k.rows.rows[row].AffinitySeconds++ },
		"kind of DSR changed":    func(k *fakeKernel, _ bpf.FrontendKey, row uint32) { k.rows.rows[row].Dsr ^= 1 },
		"node of a backend changed": func(k *fakeKernel, _ bpf.FrontendKey, row uint32) {
			k.backends.rows[k.slots.rows[k.rows.rows[row].Decisions[0].First]].Node.Bytes[15]++
		},
		"foreign balancer": func(k *fakeKernel, _ bpf.FrontendKey, _ uint32) {
			k.balancers.entries[bpf.NetworkKey{Prefixlen: 8}] = 1
		},
		"balancer removed": func(k *fakeKernel, _ bpf.FrontendKey, _ uint32) {
			delete(k.balancers.entries, codec.NetworkKey(podNetwork))
		},
		"slot changed": func(k *fakeKernel, _ bpf.FrontendKey, row uint32) {
			k.slots.rows[k.rows.rows[row].Decisions[0].First] = 0
		},
		"backend changed": func(k *fakeKernel, _ bpf.FrontendKey, row uint32) {
			k.backends.rows[k.slots.rows[k.rows.rows[row].Decisions[0].First]].Port = 9
		},
		"service name removed": func(k *fakeKernel, _ bpf.FrontendKey, row uint32) {
			delete(k.services.entries, k.rows.rows[row].Service)
		},
		"foreign network": func(k *fakeKernel, _ bpf.FrontendKey, _ uint32) {
			k.networks.entries[bpf.NetworkKey{Prefixlen: 8}] = bpf.NetworkService
		},
		"network of pods taken for a ServiceCIDR": func(k *fakeKernel, _ bpf.FrontendKey, _ uint32) {
			k.networks.entries[codec.NetworkKey(podNetwork)] = bpf.NetworkService
		},
		"foreign frontend": func(k *fakeKernel, _ bpf.FrontendKey, row uint32) {
			k.index.entries[bpf.FrontendKey{Port: 1}] = row
		},
		"foreign source range": func(k *fakeKernel, _ bpf.FrontendKey, _ uint32) {
			k.ranges.entries[bpf.SourceRangeKey{SourceSet: 99, Prefixlen: 32 + 96}] = 1
		},
		"reserved port removed": func(k *fakeKernel, _ bpf.FrontendKey, _ uint32) {
			delete(k.reserved.entries, reservedHere)
		},
		"foreign reserved port": func(k *fakeKernel, _ bpf.FrontendKey, _ uint32) {
			k.reserved.entries[bpf.ReservedPort{Port: 7, Protocol: 6, IpVersion: 4}] = 1
		},
		"foreign service": func(k *fakeKernel, _ bpf.FrontendKey, _ uint32) {
			k.services.entries[4711] = bpf.ServiceName{}
		},
	} {
		t.Run(name, func(t *testing.T) {
			k := smallKernel(t)
			s := newSyncer(t, k)
			plans := randomPlans(r, 6)
			plans[ref("simple")] = simplePlan(ref("simple"), 99, 3)
			plans[ref("open")] = publicPlan(ref("open"), 98, 30080)
			delta := difference(nil, plans)
			delta.PodNetworks, delta.Balancers = &[]netip.Prefix{podNetwork}, &[]netip.Prefix{podNetwork}
			mustApply(t, s, delta)
			key := codec.FrontendKey(plans[ref("simple")].Frontends[0].Key)
			damage(k, key, k.index.entries[key])
			k.t = &testing.T{} // repairs overwrite what a program may be reading: it is wrong anyway
			if n, err := s.Audit(); n != 1 || err != nil {
				t.Errorf("audit: %d repairs, %v", n, err)
			}
			k.t = t
			k.mustHold(t, plans, "after the audit")
			k.mustReserveOnly(t)
			if n, err := s.Audit(); n != 0 || err != nil {
				t.Errorf("second audit: %d repairs, %v", n, err)
			}
		})
	}
}
