// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"

	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// A twinScenario returns what a pod's programs see: "ok", or what goes wrong.
type twinScenario struct {
	name string
	run  func(*sidecar) string
	may  bool // it need not be "ok", as long as both are equal
	slow bool // it waits, and runs beside others; no other one has its addresses
}

// both runs it with both pods at once. Without a twin the result has to be that of the only one.
func (s *twinScenario) both(twins []*sidecar) (got, want string) {
	results := make([]string, len(twins))
	var group sync.WaitGroup
	for i, twin := range twins {
		group.Go(func() { results[i] = s.run(twin) })
	}
	group.Wait()
	return results[0], results[len(results)-1]
}

// A twinWay is a direction of connections through the proxy.
type twinWay struct {
	name string
	out  bool
	ends func(*sidecar) (from, to *lab.Host)
}

func (w *world) twinWays(p proxy, family int) (all []twinWay) {
	if p.outbound && (family == 0 || p.outbound6) {
		all = append(all, twinWay{"to another pod", true, func(s *sidecar) (from, to *lab.Host) { return s.pod, w.Host("b1") }})
	}
	return append(all, twinWay{"from outside", false, func(s *sidecar) (from, to *lab.Host) { return w.Host("client"), s.pod }})
}

func twinScenarios(w *world, p proxy, family int, mode twinMode) (all []twinScenario) {
	for _, way := range w.twinWays(p, family) {
		all = append(all, w.scenariosOf(way, p, family, mode)...)
	}
	return append(all, w.scenariosOfItself(p, family)...)
}

// scenariosOf are those of one way.
func (w *world) scenariosOf(way twinWay, p proxy, family int, mode twinMode) (all []twinScenario) {
	dial := func(s *sidecar, port uint16) dialer {
		from, to := way.ends(s)
		return w.dialer(from, addressesOf(to, port)[family])
	}
	add := func(name string, port uint16, may bool, run func(dialer) string) {
		all = append(all, twinScenario{name: way.name + ", " + name, may: may, slow: port == twinSlow,
			run: func(s *sidecar) string { return run(dial(s, port)) }})
	}
	for _, size := range mode.sizes() {
		add(fmt.Sprintf("%d octets and back", size), twinPort, false, func(d dialer) string { return echoed(d, size) })
	}
	add("the server closes with data unread", twinPort, true, func(d dialer) string { return endedBy(d, 'u') })
	add("the server resets", twinPort, true, func(d dialer) string { return endedBy(d, 'r') })
	add("half-close and answer", twinPort, false, halfClosed)
	add("the client closes with data unread", twinPort, true, leftUnread)
	add("the server speaks first", twinFirst, false, greeted)
	add("nothing listens", twinClosed, true, func(d dialer) string { return endedBy(d, 'u') })
	if family == 0 || !testing.Short() {
		add("the reader is slow", twinSlow, false, readSlowly)
	}
	add("HTTP/2", twinHTTP, false, manyStreams)
	add("gRPC", twinHTTP, false, bidirectional)
	add("WebSocket", twinHTTP, false, webSocket)
	for port, excluded := range map[uint16]bool{twinPort: false, twinExcluded: true} {
		all = append(all, twinScenario{name: fmt.Sprintf("%s, port %d", way.name, port), slow: excluded, run: func(s *sidecar) string {
			from, to := way.ends(s)
			return w.passed(s, from, addressesOf(to, port)[family], !excluded)
		}})
	}
	return all
}

// scenariosOfItself are those of connections of a pod to itself.
func (w *world) scenariosOfItself(p proxy, family int) (all []twinScenario) {
	add := func(name string, slow bool, run func(*sidecar) string) {
		all = append(all, twinScenario{name: name, slow: slow, run: run})
	}
	out := p.outbound && (family == 0 || p.outbound6)
	if out {
		for port, inbound := range map[uint16]bool{twinPort: true, twinTunnel: false} {
			add(fmt.Sprintf("the proxy to port %d of its own pod", port), !inbound, func(s *sidecar) string {
				return w.calledItself(s, addressesOf(s.pod, port)[family], inbound)
			})
		}
	}
	for name, to := range map[string]func(*sidecar) netip.AddrPort{
		"its own address": func(s *sidecar) netip.AddrPort { return addressesOf(s.pod, twinPort)[family] },
		"loopback": func(*sidecar) netip.AddrPort {
			return netip.AddrPortFrom([]netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}[family], twinPort)
		},
		"its own Service": func(s *sidecar) netip.AddrPort {
			n := map[string]uint8{"a1": 41, "a2": 42}[s.pod.Name]
			return netip.AddrPortFrom(netip.MustParseAddr(node.ClusterIPs(n)[family]), 80)
		},
	} {
		service := name == "its own Service"
		if service && !out {
			continue
		}
		add("to "+name, false, func(s *sidecar) string { return echoed(w.dialer(s.pod, to(s)), 1<<10) })
		if !service { // where the rules are, Beeline translates the Service before them
			add("to "+name+", the way", true, func(s *sidecar) string {
				return w.passed(s, s.pod, netip.AddrPortFrom(to(s).Addr(), twinFirst), false) // the proxy's calls of the pod itself go to another port
			})
		}
	}
	return all
}
