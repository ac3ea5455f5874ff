// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"beeline.io/beeline/internal/node/netfilter"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/util/wakeup"
)

// filtersInterval is how often packet filters are compared.
const filtersInterval = time.Second

// proxiesInterval is how often at most rules of another proxy are searched. It lists all chains, and kube-proxy changes
// some every second.
const proxiesInterval = 3 * time.Second

// ipvsDevice has the addresses of Services in kube-proxy's IPVS mode.
const ipvsDevice = "kube-ipvs0"

// searchShare bounds searches: they take at most 1/searchShare of the time, as with tens of thousands of rules of which
// some change every second, but come at least every longestSearchGap.
const (
	searchShare      = 10
	longestSearchGap = 30 * time.Second
)

// filters are the packet filters of this node that would drop packets which the edge sends, and that it bypasses.
type filters struct {
	subject netfilter.EdgeSubject // for which they were searched
	found   []netfilter.Finding
	proxies proxies
	problem string // why they are not known; empty: they are
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
	for known := (filters{}); ; {
		begun := time.Now()
		known = e.compareFilters(w, known)
		if !wakeup.Sleep(ctx, max(filtersInterval, min(searchShare*time.Since(begun), longestSearchGap))) {
			return
		}
	}
}

func (e *Edge) compareFilters(w *netfilter.Watcher, known filters) filters {
	now := filters{subject: e.filterSubject()}
	changed, err := w.Changed()
	now.proxies = compareProxies(w, known.proxies, changed)
	same := now.proxies.ipvs == known.proxies.ipvs && slices.Equal(now.proxies.rules, known.proxies.rules) && reflect.DeepEqual(now.subject, known.subject)
	if err == nil && !changed && known.problem == "" && same {
		known.proxies = now.proxies
		return known
	}
	if err == nil {
		now.found, err = w.FindForEdge(now.subject)
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

// filterSubject returns the devices that the edge forwards between, the addresses and ports that it serves and sends
// from, and the backends on other nodes, in order.
func (e *Edge) filterSubject() (s netfilter.EdgeSubject) {
	var backendPorts []uint16
	if e.config.Destinations != nil {
		backendPorts = e.config.Destinations.RemotePorts()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, index := range slices.Sorted(maps.Keys(e.devices)) {
		s.Devices = append(s.Devices, netfilter.Device{Index: index, Name: e.devices[index].Name})
		s.Own = append(s.Own, e.devices[index].Addresses...)
	}
	own := map[netip.Addr]bool{}
	for _, a := range s.Own {
		own[a] = true
	}
	var servedPorts, nodePorts []uint16
	for _, at := range e.served {
		if own[at.Addr()] {
			nodePorts = append(nodePorts, at.Port())
			continue
		}
		servedPorts = append(servedPorts, at.Port())
		if n := len(s.Served); n == 0 || s.Served[n-1] != at.Addr() {
			s.Served = append(s.Served, at.Addr())
		}
	}
	for _, r := range e.config.SNATPorts {
		s.SNATPorts = append(s.SNATPorts, netfilter.Ports(r))
	}
	s.ServedPorts, s.NodePorts, s.BackendPorts = portRanges(servedPorts), portRanges(nodePorts), portRanges(backendPorts)
	s.Backends = slices.SortedFunc(maps.Keys(e.remoteBackends.known), netip.Addr.Compare)
	return s
}

// portRanges returns the ranges of some ports, in order.
func portRanges(some []uint16) (all []netfilter.Ports) {
	slices.Sort(some)
	for _, p := range slices.Compact(some) {
		if n := len(all); n > 0 && all[n-1].Last+1 == p {
			all[n-1].Last = p
			continue
		}
		all = append(all, netfilter.Ports{First: p, Last: p})
	}
	return all
}

// maxRulesNamed is how many rules a condition quotes.
const maxRulesNamed = 3

// bypassedConditions has one condition for each kind of rule, with the first ones.
func bypassedConditions(f *filters) (all condition.List) {
	var kinds []string
	rules, devices := map[string][]string{}, map[string][]int{}
	for _, one := range f.found {
		if rules[one.Kind] == nil {
			kinds = append(kinds, one.Kind)
		}
		rules[one.Kind] = append(rules[one.Kind], one.What)
		devices[one.Kind] = append(devices[one.Kind], one.Devices...)
	}
	for _, kind := range kinds {
		var names []string
		for _, d := range f.subject.Devices {
			if slices.Contains(devices[kind], d.Index) {
				names = append(names, d.Name)
			}
		}
		quoted, them := rules[kind], "it"
		if len(quoted) > 1 {
			them = "them"
		}
		if more := len(quoted) - maxRulesNamed; more > 0 {
			quoted = append(slices.Clone(quoted[:maxRulesNamed]), fmt.Sprintf("and %d more", more))
		}
		all = append(all, condition.EdgeBypassesFilter.New("%s; packets that the edge forwards by %s do not meet %s (%s)", strings.Join(quoted, ", "), strings.Join(names, ", "), them, kind))
	}
	return all
}

// setFilters keeps what was found for the status, and logs what is new.
func (e *Edge) setFilters(f filters) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var all condition.List
	if f.problem != "" {
		all = append(all, condition.EdgeFiltersUnknown.New("%s", f.problem))
	}
	all = append(all, bypassedConditions(&f)...)
	where := slices.Clone(f.proxies.rules)
	if f.proxies.ipvs {
		where = append(where, "device "+ipvsDevice)
	}
	if len(where) > 0 {
		all = append(all, condition.OtherProxy.New("another program has rules for Services: %s", strings.Join(where, ", ")))
	}
	e.logNew(all, e.bypassed)
	e.bypassed = all
}
