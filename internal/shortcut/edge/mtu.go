// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"cmp"
	"net/netip"
	"slices"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/cluster/service"
)

// clientMTU is the largest packet that is expected from clients: few networks carry more (RFC 894).
const clientMTU = 1500

// overheads are the bytes that packets of IPv4 and of IPv6 grow by (bpf/encap/wire.h).
var overheads = map[service.DSR][2]int{
	service.DSRIPIP:   {20, 40},
	service.DSRGeneve: {20 + 8 + 8 + 4 + 8, 40 + 8 + 8 + 4 + 20},
	service.DSROpt:    {8, 24},
}

func overhead(kind service.DSR, family service.Family) int {
	if family == service.IPv6 {
		return overheads[kind][1]
	}
	return overheads[kind][0]
}

// planDSR returns what fits on the routes to the backends, or to their nodes, by kind.
func planDSR(devices, chosen []Device, destinations map[service.DSR][]netip.Addr) (all []api.EdgeDSR) {
	wanted := 0
	for _, d := range chosen {
		if d.Clients {
			wanted = max(wanted, min(d.MTU, clientMTU))
		}
	}
	routes := newRoutesOut(devices)
	for kind, addrs := range destinations {
		narrowest := map[service.Family]api.EdgeDSR{}
		for _, a := range addrs {
			family := service.FamilyOf(a)
			s, ok := routes.to(a)
			if known, met := narrowest[family]; ok && (!met || s.MTU < known.MTU) {
				s.Kind, s.Family, s.OverheadBytes, s.WantedPacketBytes = kind, family, overhead(kind, family), cmp.Or(wanted, clientMTU)
				s.MaxPacketBytes = s.MTU - s.OverheadBytes
				narrowest[family] = s
			}
		}
		for _, s := range narrowest {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b api.EdgeDSR) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Family, b.Family))
	})
	return all
}

// routesOut finds the route to an address: the longest prefix that contains it, and of several such routes
// the narrowest.
type routesOut struct {
	lengths [2][]int // prefix lengths of IPv4 and IPv6, longest first
	routes  map[netip.Prefix]api.EdgeDSR
}

func newRoutesOut(devices []Device) *routesOut {
	w := &routesOut{routes: map[netip.Prefix]api.EdgeDSR{}}
	for _, d := range devices {
		for _, route := range d.Leads {
			s := api.EdgeDSR{Device: d.Name, MTU: d.MTU}
			if route.MTU > 0 && route.MTU < d.MTU {
				s.MTU, s.Route = route.MTU, route.To.String()
			}
			if known, met := w.routes[route.To]; !met || s.MTU < known.MTU || s.MTU == known.MTU && s.Device < known.Device {
				w.routes[route.To] = s
			}
			lengths := w.of(route.To.Addr())
			if !slices.Contains(*lengths, route.To.Bits()) {
				*lengths = append(*lengths, route.To.Bits())
			}
		}
	}
	for i := range w.lengths {
		slices.SortFunc(w.lengths[i], func(a, b int) int { return cmp.Compare(b, a) })
	}
	return w
}

func (w *routesOut) of(a netip.Addr) *[]int {
	if a.Is4() {
		return &w.lengths[0]
	}
	return &w.lengths[1]
}

func (w *routesOut) to(a netip.Addr) (s api.EdgeDSR, ok bool) {
	for _, bits := range *w.of(a) {
		if s, ok = w.routes[netip.PrefixFrom(a, bits).Masked()]; ok {
			return s, true
		}
	}
	return s, false
}

// DSRChanged reports a change of what uses DSR; more: some Service uses it.
func (e *Edge) DSRChanged(more bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if more || len(e.dsr) > 0 {
		e.changed.Send()
	}
}

// noteDSR determines what fits, and logs changes.
func (e *Edge) noteDSR(devices, chosen []Device) {
	if e.config.Destinations == nil {
		return
	}
	all := planDSR(devices, chosen, e.config.Destinations.DSRDestinations())
	for _, s := range all {
		switch {
		case slices.Contains(e.dsr, s):
		case s.MaxPacketBytes < s.WantedPacketBytes:
			e.config.Log.Warn(s.String())
		default:
			e.config.Log.Info(s.String())
		}
	}
	e.dsr = all
}
