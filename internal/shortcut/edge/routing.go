// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"fmt"
	"strings"
	"time"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/node"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/util/wakeup"
)

// routingInterval is how often settings are read that the kernel does not announce changes of. Reads take at most
// 1/routingShare of the time.
const (
	routingInterval = 10 * time.Second
	routingShare    = 10
)

// followRouting writes what look-ups of routes lack when routes or routing rules have changed, until ctx ends.
func (e *Edge) followRouting(ctx context.Context) {
	changed := wakeup.NewSignal()
	e.config.Network.NotifyRouting(changed, e.hasRoutes.Load)
	ticker := time.NewTicker(routingInterval)
	defer ticker.Stop()
	took := time.Duration(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if took > routingInterval/routingShare {
				continue
			}
		case <-changed:
		}
		if !wakeup.Sleep(ctx, max(settleTime, routingShare*took)) {
			return
		}
		begin := time.Now()
		routing, err := e.routing()
		took = time.Since(begin)
		e.mu.Lock()
		e.writeRouting(&routing, err)
		e.mu.Unlock()
	}
}

// writeRouting has the programs know what look-ups of routes lack. If that cannot be read (err) or written, what was
// written last stays. The caller holds the lock.
func (e *Edge) writeRouting(routing *node.Routing, err error) {
	var all condition.List
	if err == nil {
		e.hasRoutes.Store(routing.HasRoutes())
		e.unusable = routing.Unusable
		var full condition.List
		full, err = e.putRouting(routing)
		all = append(routingConditions(routing), full...)
	}
	if err != nil {
		all = condition.List{condition.EdgeRoutingUnknown.New("%v", err)}
	}
	e.logNew(all, e.routed)
	e.routed = all
}

// putRouting writes the tables: entries before what leads to them, and deletes them after it. Tables that are full are
// conditions.
func (e *Edge) putRouting(r *node.Routing) (full condition.List, err error) {
	row := bpf.Routing{LeastMtu4: r.MTUs.Least4, LeastMtu6: r.MTUs.Least6}
	for flag, set := range map[uint32]bool{
		bpf.RoutedBySource: r.BySource, bpf.RoutedByPorts: r.ByPorts, bpf.RoutedByTOS: r.ByTOS,
		bpf.RoutedByMark: len(r.ByMark) > 0, bpf.RouteIgnoresPMTU: !r.UsesPMTU,
	} {
		if set {
			row.Flags |= flag
		}
	}
	mtus, encaps := map[bpf.RouteKey]uint32{}, map[bpf.NetworkKey]bpf.RouteEncap{}
	if table := e.datapath.RouteMTUs(); len(r.MTUs.Of) > int(table.Max()) {
		row.Flags |= bpf.RouteMTUsMissing
		full = append(full, condition.RouteMTUsMissing.New("%d next hops and networks with an MTU of their own, room for %d", len(r.MTUs.Of), table.Max()))
	} else {
		for to, mtu := range r.MTUs.Of {
			mtus[routeKey(to)] = mtu
		}
	}
	if table := e.datapath.RouteEncaps(); len(r.Encaps) > int(table.Max()) {
		full = append(full, condition.EdgeRouteUnusable.New("%d routes with an outer header, room for %d", len(r.Encaps), table.Max()))
	} else {
		for to, route := range r.Encaps {
			key := bpf.NetworkKey{Prefixlen: bpf.PrefixLen(to), Address: bpf.AddressFrom(to.Addr())}
			encaps[key] = bpf.RouteEncap{Device: route.Device, Mtu: route.MTU}
		}
	}
	if row.Flags&bpf.RouteMTUsMissing != 0 { // so the entries need not be complete
		if err := e.datapath.Routings().Put(0, row); err != nil {
			return nil, err
		}
	}
	// Those to delete may leave no room for others.
	if err := bpf.DeleteUnwanted(e.datapath.RouteEncaps(), encaps); err != nil {
		return nil, err
	}
	if err := bpf.Publish(e.datapath.RouteEncaps(), encaps); err != nil {
		return nil, err
	}
	if err := bpf.DeleteUnwanted(e.datapath.RouteMTUs(), mtus); err != nil {
		return nil, err
	}
	if err := bpf.Publish(e.datapath.RouteMTUs(), mtus); err != nil {
		return nil, err
	}
	return full, e.datapath.Routings().Put(0, row)
}

func routeKey(to node.RoutedTo) bpf.RouteKey {
	key := bpf.RouteKey{
		Prefixlen: bpf.RouteKeyBits + bpf.PrefixLen(to.To), IsV6: 1, Device: uint32(to.Device), Metric: to.Metric,
		Destination: bpf.AddressFrom(to.To.Addr()),
	}
	if to.To.Addr().Is4() {
		key.IsV6 = 0
	}
	if !to.Gateway.IsUnspecified() {
		key.NextHop = bpf.AddressFrom(to.Gateway)
	}
	return key
}

// routingConditions are about routes and rules that the edge cannot follow.
func routingConditions(r *node.Routing) (all condition.List) {
	if len(r.Unusable) > 0 {
		all = append(all, condition.EdgeRouteUnusable.New("packets of Services are dropped where such a route leads: %s", list(r.Unusable, (*node.Route).String)))
	}
	if len(r.ByMark) > 0 {
		all = append(all, condition.EdgeBypassesRules.New("routing rules that packets of Services do not meet at the edge: %s", list(r.ByMark, (*node.Rule).String)))
	}
	return all
}

// list describes the first of some objects.
func list[T any](all []T, describe func(*T) string) string {
	var texts []string
	for i := range all[:min(len(all), mostDescribed)] {
		texts = append(texts, describe(&all[i]))
	}
	if more := len(all) - mostDescribed; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, "; ")
}
