// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"beeline.io/beeline/internal/condition"
	"beeline.io/beeline/internal/netfilter"
)

// filtersInterval is how often packet filters are compared.
const filtersInterval = time.Second

// filters are the packet filters of this node that would drop packets which the edge sends, and that it bypasses.
type filters struct {
	devices  []netfilter.Device // for which they were searched
	served   []netip.Addr       // the same: addresses of Services
	backends []netip.Addr       // the same: those on other nodes
	own      []netip.Addr       // the same: of the node
	found    []netfilter.Finding
	problem  string // why they are not known; empty: they are
}

// followFilters searches packet filters when they or the devices have changed, until ctx ends.
func (e *Edge) followFilters(ctx context.Context) {
	w, err := netfilter.NewEdgeWatcher()
	if err != nil {
		e.setFilters(filters{problem: err.Error()})
		return
	}
	defer w.Close()
	ticker := time.NewTicker(filtersInterval)
	defer ticker.Stop()
	for known := (filters{}); ; {
		known = e.compareFilters(w, known)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (e *Edge) compareFilters(w *netfilter.Watcher, known filters) filters {
	now := e.filterSubject()
	changed, err := w.Changed()
	same := reflect.DeepEqual(now.devices, known.devices) && slices.Equal(now.served, known.served) && slices.Equal(now.backends, known.backends) &&
		slices.Equal(now.own, known.own)
	if err == nil && !changed && known.problem == "" && same {
		return known
	}
	if err == nil {
		now.found, err = w.FindForEdge(netfilter.EdgeSubject{Devices: now.devices, Served: now.served, Backends: now.backends, Own: now.own})
	}
	if err != nil {
		now.problem = err.Error()
	}
	e.setFilters(now)
	return now
}

// filterSubject returns the devices that the edge forwards between, the addresses that it serves, and the backends on
// other nodes, in order.
func (e *Edge) filterSubject() (f filters) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, index := range slices.Sorted(maps.Keys(e.devices)) {
		f.devices = append(f.devices, netfilter.Device{Index: index, Name: e.devices[index].Name})
		f.own = append(f.own, e.devices[index].Addresses...)
	}
	f.served = e.served
	f.backends = slices.SortedFunc(maps.Keys(e.remoteBackends.known), netip.Addr.Compare)
	return f
}

// setFilters keeps what was found for the status, and logs what is new.
func (e *Edge) setFilters(f filters) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var all condition.List
	if f.problem != "" {
		all = append(all, condition.EdgeFiltersUnknown.New("%s", f.problem))
	}
	for _, one := range f.found {
		var names []string
		for _, d := range f.devices {
			if slices.Contains(one.Devices, d.Index) {
				names = append(names, d.Name)
			}
		}
		all = append(all, condition.EdgeBypassesFilter.New("%s; packets that the edge forwards by %s do not meet it", one.What, strings.Join(names, ", ")))
	}
	for _, c := range all {
		if !slices.Contains(e.bypassed, c) {
			e.config.Log.Warn("the edge: "+c.Message, "code", string(c.Code), "remedy", c.Remedy)
		}
	}
	e.bypassed = all
}
