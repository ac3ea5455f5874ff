// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node"
	"beeline.io/beeline/internal/node/netdev"
)

// The most networks of a pod's routes and rules, and of its addresses, for which the kernel is asked: a pod may be able
// to add as many as it likes.
const (
	mostNetworks  = 512
	mostAddresses = 8
)

// podDevices are what is found out about the devices of a pod by which connections do not go to its proxy.
type podDevices struct {
	excluded []uint32 // indexes
	virtual  []int    // indexes of those behind which virtual machines are
	bySource bool
	routes   map[Route]Rule
	// unclear is what the routes do not tell; empty: nothing.
	unclear string
}

func (d *podDevices) equal(other *podDevices) bool {
	return d.bySource == other.bySource && d.unclear == other.unclear && slices.Equal(d.virtual, other.virtual) &&
		slices.Equal(d.excluded, other.excluded) && maps.Equal(d.routes, other.routes)
}

// interfaces are names of devices of a pod: of those whose connections do not go to its proxy, and of those behind
// which virtual machines are. One that ends in "+" is the beginning of names.
type interfaces struct{ excluded, virtual []string }

func (i *interfaces) equal(other *interfaces) bool {
	return slices.Equal(i.excluded, other.excluded) && slices.Equal(i.virtual, other.virtual)
}

func (i *interfaces) some() bool { return len(i.excluded) > 0 || len(i.virtual) > 0 }

// matches reports whether a device has one of these names, as iptables compares them: one that ends in "+" is the
// beginning of names.
func matches(names []string, device string) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		beginning, pattern := strings.CutSuffix(name, "+")
		return device == name || pattern && strings.HasPrefix(device, beginning)
	})
}

// readDevices finds the excluded devices and those of virtual machines in the calling thread's network namespace, by
// their names, and the networks to which packets leave by the former. Which route a packet takes may depend on its
// source and on rules, so the kernel is asked for an address of each network.
func readDevices(names interfaces) (d podDevices, err error) {
	devices, err := netdev.Devices()
	if err != nil {
		return d, err
	}
	for _, one := range devices {
		switch {
		case matches(names.virtual, one.Name): // first, as by Istio's rules
			d.virtual = append(d.virtual, one.Index)
		case matches(names.excluded, one.Name):
			d.excluded = append(d.excluded, uint32(one.Index))
		}
	}
	slices.Sort(d.virtual)
	slices.Sort(d.excluded)
	if len(d.excluded) == 0 {
		return d, nil
	}
	r := routeReader{devices: &d}
	if err := r.list(); err != nil {
		return d, err
	}
	return d, r.ask()
}

// A routeReader asks the kernel for the routes of a network namespace.
type routeReader struct {
	devices  *podDevices
	networks []network
	sources  []netip.Addr // for which routes are different; the pod's own
	multiple bool         // routes have several next hops
}

// A network is one of a route or a rule. Those that are not routed are only kept apart from the others.
type network struct {
	netip.Prefix
	routed bool
}

// apart are networks in which no address stands for the network around them.
var apart = []string{"0.0.0.0/8", "127.0.0.0/8", "224.0.0.0/3", "::/8", "fe80::/10", "ff00::/8"}

// list finds the networks that may have different routes.
func (r *routeReader) list() error {
	found := map[netip.Prefix]bool{}
	for _, text := range apart {
		found[netip.MustParsePrefix(text)] = false
	}
	if err := r.listRoutes(found); err != nil {
		return err
	}
	if err := r.listRules(found); err != nil {
		return err
	}
	if r.devices.bySource {
		if err := r.listSources(); err != nil {
			return err
		}
	}
	for to, routed := range found {
		r.networks = append(r.networks, network{to, routed})
	}
	slices.SortFunc(r.networks, func(a, b network) int { return a.Compare(b.Prefix) })
	return nil
}

func (r *routeReader) unclear(format string, args ...any) {
	if r.devices.unclear == "" {
		r.devices.unclear = fmt.Sprintf(format, args...)
	}
}

var errTooMany = fmt.Errorf("there are more than %d networks", mostNetworks)

// listRoutes adds the networks of the routes of all tables.
func (r *routeReader) listRoutes(found map[netip.Prefix]bool) error {
	return node.EachRoute(func() {}, func(route *node.Route) error {
		to := route.To.Masked()
		ofLink := to.Addr().Is6() && to.Addr().IsLinkLocalUnicast() // what is sent there has its device in the address
		routed := !ofLink && !slices.Contains(unrouted, route.Type)
		found[to] = found[to] || routed
		r.multiple = r.multiple || len(route.Hops) > 1 || route.Object != 0
		r.devices.bySource = r.devices.bySource || route.From
		if route.TOS != 0 {
			r.unclear("the route to %s is for a traffic class", to)
		}
		if len(found) > mostNetworks {
			return errTooMany
		}
		return nil
	})
}

// unrouted are the types of routes by which nothing is sent to other hosts, or not to one.
var unrouted = []uint8{unix.RTN_LOCAL, unix.RTN_BROADCAST, unix.RTN_ANYCAST, unix.RTN_MULTICAST}

// listRules adds the networks of the routing rules. Those that select by a mark do not select what a socket without a
// mark (SO_MARK) sends.
func (r *routeReader) listRules(found map[netip.Prefix]bool) error {
	rules, err := new(node.Network).Rules()
	if err != nil {
		return err
	}
	for i := range rules {
		rule := &rules[i]
		if rule.To.IsValid() {
			found[rule.To] = true
		}
		r.devices.bySource = r.devices.bySource || rule.Source
		if rule.Ports || rule.TOS || rule.Users {
			r.unclear("%s selects by protocol, port, traffic class or user", rule)
		}
	}
	if len(found) > mostNetworks {
		return errTooMany
	}
	return nil
}

func (r *routeReader) listSources() error {
	list, err := netdev.Addresses()
	if err != nil {
		return err
	}
	for _, a := range list {
		if !a.IsLoopback() && !a.IsLinkLocalUnicast() {
			r.sources = append(r.sources, a.Addr)
		}
	}
	slices.SortFunc(r.sources, netip.Addr.Compare)
	r.sources = slices.Compact(r.sources)
	if len(r.sources) > mostAddresses {
		r.unclear("routes depend on the source, and there are more than %d addresses", mostAddresses)
		r.sources = r.sources[:mostAddresses]
	}
	return nil
}

// ask fills in the routes that differ from those of the next larger network.
func (r *routeReader) ask() error {
	r.devices.routes = map[Route]Rule{}
	for _, source := range append([]netip.Addr{{}}, r.sources...) {
		if err := r.askFor(source); err != nil {
			return err
		}
	}
	return nil
}

func (r *routeReader) askFor(source netip.Addr) error {
	type answer struct {
		network
		excluded bool
	}
	var around []answer // the networks around this one
	for i, n := range r.networks {
		for len(around) > 0 && !around[len(around)-1].Contains(n.Addr()) {
			around = around[:len(around)-1]
		}
		outer := len(around) > 0 && around[len(around)-1].excluded
		excluded := outer
		address, some := representative(n, r.networks[i+1:])
		if n.routed && some && (!source.IsValid() || source.Is4() == address.Is4()) {
			var err error
			if excluded, err = r.leavesExcluded(address, source); err != nil {
				return err
			}
		}
		if excluded != outer {
			r.devices.routes[Route{Source: source, To: n.Prefix}] = map[bool]Rule{true: Exclude, false: Include}[excluded]
		}
		around = append(around, answer{n, excluded})
	}
	return nil
}

// representative returns an address of a network that is in none of those that follow it, which are sorted.
func representative(n network, following []network) (netip.Addr, bool) {
	candidate := n.Addr()
	for _, inner := range following {
		if !n.Contains(inner.Addr()) || candidate.Less(inner.Addr()) {
			break
		}
		if inner.Contains(candidate) {
			candidate = netdev.LastAddress(inner.Prefix).Next()
		}
	}
	return candidate, candidate.IsValid() && n.Contains(candidate)
}

// leavesExcluded reports whether a packet from a source to an address leaves by an excluded device. Without a source
// the kernel chooses one with the route; for connections by IPv4 it then looks up the route again, with the source.
func (r *routeReader) leavesExcluded(to, source netip.Addr) (bool, error) {
	device, chosen, err := routeTo(to, source)
	if err == nil && device != 0 && !source.IsValid() && chosen.IsValid() && to.Is4() && r.devices.bySource {
		source = chosen
		device, _, err = routeTo(to, source)
	}
	if err != nil || device == 0 || !r.multiple {
		return err == nil && r.excludes(device), err
	}
	return r.allExcluded(to, source)
}

func (r *routeReader) excludes(device int) bool {
	return slices.Contains(r.devices.excluded, uint32(device))
}

// allExcluded reports whether all next hops of the route to an address are at excluded devices. Of several, the kernel
// chooses by a hash that is not known.
func (r *routeReader) allExcluded(to, source netip.Addr) (bool, error) {
	found, err := getRoute(to, source, true)
	if err != nil || found == nil {
		return false, err
	}
	if len(found.MultiPath) == 0 {
		return r.excludes(found.LinkIndex), nil
	}
	excluded := 0
	for _, hop := range found.MultiPath {
		if r.excludes(hop.LinkIndex) {
			excluded++
		}
	}
	if excluded > 0 && excluded < len(found.MultiPath) {
		r.unclear("the route to %s has next hops at these devices and at others", to)
	}
	return excluded == len(found.MultiPath), nil
}

// routeTo returns the device and the source of the route to an address; device 0: there is no route.
func routeTo(to, source netip.Addr) (device int, chosen netip.Addr, err error) {
	found, err := getRoute(to, source, false)
	if err != nil || found == nil {
		return 0, chosen, err
	}
	chosen, _ = netip.AddrFromSlice(found.Src)
	return found.LinkIndex, chosen.Unmap(), nil
}

// getRoute asks the kernel for a route; nil: there is none. whole: with all next hops.
func getRoute(to, source netip.Addr, whole bool) (*netlink.Route, error) {
	options := netlink.RouteGetOptions{FIBMatch: whole}
	if source.IsValid() {
		options.SrcAddr = source.AsSlice()
	}
	found, err := netlink.RouteGetWithOptions(to.AsSlice(), &options)
	switch {
	case errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.EPERM):
		return nil, fmt.Errorf("ask for the route to %s: %w", to, err)
	case err != nil || len(found) == 0: // also unreachable, prohibit
		return nil, nil
	}
	return &found[0], nil
}
