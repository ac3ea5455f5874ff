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

	"github.com/vishvananda/netlink"

	"beeline.io/beeline/internal/condition"
	"beeline.io/beeline/internal/netfilter"
)

// filtersInterval is how often packet filters are compared.
const filtersInterval = time.Second

// proxiesInterval is how often at most rules of another proxy are searched. It lists all chains, and kube-proxy changes
// some every second.
const proxiesInterval = 3 * time.Second

// ipvsDevice has the addresses of Services in kube-proxy's IPVS mode.
const ipvsDevice = "kube-ipvs0"

// filters are the packet filters of this node that would drop packets which the edge sends, and that it bypasses.
type filters struct {
	devices  []netfilter.Device // for which they were searched
	served   []netip.Addr       // the same: addresses of Services
	backends []netip.Addr       // the same: those on other nodes
	own      []netip.Addr       // the same: of the node
	found    []netfilter.Finding
	proxies  proxies
	problem  string // why they are not known; empty: they are
}

// proxies is where another proxy has rules for Services.
type proxies struct {
	ipvs  bool // the device of kube-proxy's IPVS mode exists
	rules []string
	asked time.Time // when the rules were searched
	due   bool      // some have changed since
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
	now.proxies = compareProxies(w, known.proxies, changed)
	same := now.proxies.ipvs == known.proxies.ipvs && slices.Equal(now.proxies.rules, known.proxies.rules) && reflect.DeepEqual(now.devices, known.devices) && slices.Equal(now.served, known.served) && slices.Equal(now.backends, known.backends) &&
		slices.Equal(now.own, known.own)
	if err == nil && !changed && known.problem == "" && same {
		known.proxies = now.proxies
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

// compareProxies searches rules of another proxy if some have changed. What cannot be read is asked again, and known as
// before.
func compareProxies(w *netfilter.Watcher, known proxies, changed bool) proxies {
	_, err := netlink.LinkByName(ipvsDevice)
	now := proxies{ipvs: err == nil, rules: known.rules, asked: known.asked, due: known.due || changed || known.asked.IsZero()}
	if !now.due || time.Since(known.asked) < proxiesInterval {
		return now
	}
	now.asked = time.Now()
	if rules, err := w.Proxies(); err == nil {
		now.rules, now.due = rules, false
	}
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
	where := slices.Clone(f.proxies.rules)
	if f.proxies.ipvs {
		where = append(where, "device "+ipvsDevice)
	}
	if len(where) > 0 {
		all = append(all, condition.OtherProxy.New("another program has rules for Services: %s", strings.Join(where, ", ")))
	}
	for _, c := range all {
		if !slices.Contains(e.bypassed, c) {
			e.config.Log.Warn("the edge: "+c.Message, "code", string(c.Code), "remedy", c.Remedy)
		}
	}
	e.bypassed = all
}
