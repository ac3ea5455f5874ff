// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
)

// networkTable is a table of networks and its content. A nil table stays empty, without error: the datapath
// has no such table.
type networkTable[V comparable] struct {
	table   bpf.Hash[bpf.NetworkKey, V]
	applied map[netip.Prefix]V
	err     error // why it differs from what is wanted
}

func (n *networkTable[V]) restore() error {
	n.applied = map[netip.Prefix]V{}
	if n.table == nil {
		return nil
	}
	all, err := n.table.All()
	for key, v := range all {
		n.applied[key.Prefix()] = v
	}
	return err
}

// reconcile makes the table hold what is wanted: it adds new networks before it removes old ones. Of two
// nested networks the smaller one, which is an exception to the other, is added first and removed last.
func (n *networkTable[V]) reconcile(what string, want map[netip.Prefix]V) {
	if n.table == nil {
		return
	}
	var errs []error
	var missing, left []netip.Prefix
	for p, v := range want {
		if have, ok := n.applied[p]; !ok || have != v {
			missing = append(missing, p)
		}
	}
	for p := range n.applied {
		if _, ok := want[p]; !ok {
			left = append(left, p)
		}
	}
	shorter := func(a, b netip.Prefix) int { return cmp.Compare(a.Bits(), b.Bits()) }
	slices.SortFunc(missing, func(a, b netip.Prefix) int { return shorter(b, a) })
	slices.SortFunc(left, shorter)
	for _, p := range missing {
		if err := n.table.Put(codec.NetworkKey(p), want[p]); err != nil {
			errs = append(errs, fmt.Errorf("%s %s: %w", what, p, err))
			continue
		}
		n.applied[p] = want[p]
	}
	for _, p := range left {
		if err := n.table.Delete(codec.NetworkKey(p)); err != nil {
			errs = append(errs, fmt.Errorf("%s %s: %w", what, p, err))
			continue
		}
		delete(n.applied, p)
	}
	n.err = errors.Join(errs...)
}

// auditNetworks repairs a table of networks.
func auditNetworks[V comparable](a *auditor, n *networkTable[V]) {
	if n.table == nil {
		return
	}
	want := map[bpf.NetworkKey]V{}
	for p, v := range n.applied {
		want[codec.NetworkKey(p)] = v
	}
	auditHash(a, n.table, want)
}

// wantedNetworks returns the ServiceCIDRs and the pod networks. A network that is both is a ServiceCIDR:
// clients send to addresses of Services. An address of this node inside a ServiceCIDR is an exception:
// packets to it are not dropped (R21).
func (s *Syncer) wantedNetworks() (want map[netip.Prefix]bpf.Network, conflict []netip.Prefix) {
	want = map[netip.Prefix]bpf.Network{}
	for _, p := range s.cidrs {
		want[p] = bpf.NetworkService
	}
	for _, p := range s.pods {
		if want[p] == bpf.NetworkService {
			conflict = append(conflict, p)
			continue
		}
		want[p] = bpf.NetworkPod
	}
	for _, a := range s.own {
		if s.inServiceCIDR(a) {
			want[netip.PrefixFrom(a, a.BitLen())] = bpf.NetworkOwn
		}
	}
	return want, conflict
}

// inServiceCIDR reports whether the smallest network that contains an address is a ServiceCIDR.
func (s *Syncer) inServiceCIDR(a netip.Addr) bool {
	longest := func(networks []netip.Prefix) int {
		bits := -1
		for _, p := range networks {
			if p.Contains(a) {
				bits = max(bits, p.Bits())
			}
		}
		return bits
	}
	cidr := longest(s.cidrs)
	return cidr >= 0 && cidr >= longest(s.pods)
}

// reconcileNetworks publishes ServiceCIDRs, pod networks and balancers.
func (s *Syncer) reconcileNetworks() {
	networks, conflict := s.wantedNetworks()
	if s.networks.err = s.tables.Prefilter.SetServiceNetworks(s.serviceNetworks(networks)); s.networks.err == nil {
		s.networks.err = s.reconcileClasses(networks)
	}
	if s.networks.err == nil { // now without those that have been removed from the table
		s.networks.err = s.tables.Prefilter.SetServiceNetworks(s.serviceNetworks(networks))
	}
	s.conflict = conflict
	s.balancers.reconcile("balancer", s.wantedBalancerTable())
}

// serviceNetworks returns the ServiceCIDRs that are wanted and those in the table.
func (s *Syncer) serviceNetworks(want map[netip.Prefix]bpf.Network) (all []netip.Prefix) {
	for _, networks := range []map[netip.Prefix]bpf.Network{want, s.networks.applied} {
		for p, network := range networks {
			if network == bpf.NetworkService && !slices.Contains(all, p) {
				all = append(all, p)
			}
		}
	}
	return all
}

// reconcileClasses publishes ServiceCIDRs and pod networks. While the table changes, programs look up pods
// in it instead of in the prefilter.
func (s *Syncer) reconcileClasses(networks map[netip.Prefix]bpf.Network) error {
	if !maps.Equal(networks, s.networks.applied) {
		s.tables.Prefilter.LookUpPods()
	}
	s.networks.reconcile("network", networks)
	var pods, services []netip.Prefix
	for p, network := range s.networks.applied {
		if network == bpf.NetworkPod {
			pods = append(pods, p)
		} else {
			services = append(services, p)
		}
	}
	return errors.Join(s.networks.err, s.tables.Prefilter.SetPodNetworks(pods, services))
}

// ServiceCIDRs returns the ServiceCIDRs in the tables.
func (s *Syncer) ServiceCIDRs() []netip.Prefix {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []netip.Prefix
	for p, network := range s.networks.applied {
		if network == bpf.NetworkService {
			all = append(all, p)
		}
	}
	return all
}
