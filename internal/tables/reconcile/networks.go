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
	"beeline.io/beeline/internal/cluster/service"
)

// networks keeps the tables of ServiceCIDRs, pod networks and balancers.
type networks struct {
	prefilter *bpf.Prefilter
	cidrs     []netip.Prefix // ServiceCIDRs
	pods      []netip.Prefix // networks of pods
	balancers []netip.Prefix // whose encapsulated packets are for this node's backends
	own       []netip.Addr   // of the node
	conflict  []netip.Prefix // pod networks that are also ServiceCIDRs

	classes       networkTable[bpf.Network]
	balancerTable networkTable[bpf.Balancer]
}

// take takes what a change has of them.
func (n *networks) take(delta service.Delta) {
	if delta.ServiceCIDRs != nil {
		n.cidrs = *delta.ServiceCIDRs
	}
	if delta.PodNetworks != nil {
		n.pods = *delta.PodNetworks
	}
	if delta.Balancers != nil {
		n.balancers = *delta.Balancers
	}
}

func (n *networks) restore(tables *bpf.Tables) error {
	n.prefilter, n.classes.table, n.balancerTable.table = tables.Prefilter, tables.Networks, tables.Balancers
	return errors.Join(n.classes.restore(), n.balancerTable.restore())
}

// errors returns why the tables differ from what is wanted.
func (n *networks) errors() []error { return []error{n.classes.err, n.balancerTable.err} }

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

// wantedClasses returns the ServiceCIDRs and the pod networks. A network that is both is a ServiceCIDR:
// clients send to addresses of Services. An address of this node inside a ServiceCIDR is an exception:
// packets to it are not dropped (R21).
func (n *networks) wantedClasses() (want map[netip.Prefix]bpf.Network, conflict []netip.Prefix) {
	want = map[netip.Prefix]bpf.Network{}
	for _, p := range n.cidrs {
		want[p] = bpf.NetworkService
	}
	for _, p := range n.pods {
		if want[p] == bpf.NetworkService {
			conflict = append(conflict, p)
			continue
		}
		want[p] = bpf.NetworkPod
	}
	for _, a := range n.own {
		if n.inServiceCIDR(a) {
			want[netip.PrefixFrom(a, a.BitLen())] = bpf.NetworkOwn
		}
	}
	return want, conflict
}

// inServiceCIDR reports whether the smallest network that contains an address is a ServiceCIDR.
func (n *networks) inServiceCIDR(a netip.Addr) bool {
	longest := func(networks []netip.Prefix) int {
		bits := -1
		for _, p := range networks {
			if p.Contains(a) {
				bits = max(bits, p.Bits())
			}
		}
		return bits
	}
	cidr := longest(n.cidrs)
	return cidr >= 0 && cidr >= longest(n.pods)
}

// reconcile publishes ServiceCIDRs, pod networks and balancers.
func (n *networks) reconcile() {
	networks, conflict := n.wantedClasses()
	if n.classes.err = n.prefilter.SetServiceNetworks(n.serviceNetworks(networks)); n.classes.err == nil {
		n.classes.err = n.reconcileClasses(networks)
	}
	if n.classes.err == nil { // now without those that have been removed from the table
		n.classes.err = n.prefilter.SetServiceNetworks(n.serviceNetworks(networks))
	}
	n.conflict = conflict
	n.balancerTable.reconcile("balancer", n.wantedBalancers())
}

// serviceNetworks returns the ServiceCIDRs that are wanted and those in the table.
func (n *networks) serviceNetworks(want map[netip.Prefix]bpf.Network) (all []netip.Prefix) {
	for _, networks := range []map[netip.Prefix]bpf.Network{want, n.classes.applied} {
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
func (n *networks) reconcileClasses(networks map[netip.Prefix]bpf.Network) error {
	if !maps.Equal(networks, n.classes.applied) {
		n.prefilter.LookUpPods()
	}
	n.classes.reconcile("network", networks)
	var pods, services []netip.Prefix
	for p, network := range n.classes.applied {
		if network == bpf.NetworkPod {
			pods = append(pods, p)
		} else {
			services = append(services, p)
		}
	}
	return errors.Join(n.classes.err, n.prefilter.SetPodNetworks(pods, services))
}

// appliedServiceCIDRs returns the ServiceCIDRs in the tables.
func (n *networks) appliedServiceCIDRs() []netip.Prefix { return n.serviceNetworks(nil) }

// wantedBalancers returns what the table of balancers should hold: their networks, and the node's own
// addresses within these.
func (n *networks) wantedBalancers() map[netip.Prefix]bpf.Balancer {
	want := map[netip.Prefix]bpf.Balancer{}
	var networks []netip.Prefix
	for _, p := range n.balancers {
		want[p] = bpf.IsBalancer
		if !p.IsSingleIP() {
			networks = append(networks, p)
		}
	}
	for _, a := range n.own {
		one := netip.PrefixFrom(a, a.BitLen())
		if _, named := want[one]; named || slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(a) }) {
			want[one] = bpf.IsOwn
		}
	}
	return want
}
