// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/test/lab"
)

// setForwarding sets whether node-a forwards packets, as sysctl(8) does.
func (w *world) setForwarding(value string) {
	w.t.Helper()
	w.setForwardingOf(w.agent.Host, value)
}

func (w *world) setForwardingOf(host *lab.Host, value string) {
	w.t.Helper()
	w.must(host.Do(func() error {
		for _, name := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
			if err := os.WriteFile("/proc/sys/net/"+name, []byte(value), 0); err != nil {
				return err
			}
		}
		return nil
	}))
}

// A node whose kernel does not forward, Debian's default, says so and what to set, in status, explain and the
// counters. It serves as soon as that is set.
func TestForwardingIsOff(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := newWorld(t, "--edge-mode="+mode)
		w.setForwarding("0")
		w.must(w.agent.Start())
		w.wantExit(0) // no Service needs it
		w.apply("web", objects(w.public("b1"))...)
		w.wantExit(3, "ForwardingOff: IPv4 is not forwarded", "sysctl -w net.ipv4.ip_forward=1,",
			"ForwardingOff: IPv6 is not forwarded", "sysctl -w net.ipv6.conf.all.forwarding=1,", "--set-sysctls")
		for family, to := range addresses(w.Host("node-a"), nodePort) {
			w.wantSilence("udp", to, "drop_forwarding")
			from := netip.AddrPortFrom(addresses(w.Host("client"), 0)[family].Addr(), 40000)
			if a := w.explain(from.String(), to.String()); a.Reason != "drop_forwarding" {
				t.Errorf("explain says %+v, want drop_forwarding", a)
			}
		}
		s, both := w.public("b1")
		w.apply("web", objects(s, slices.DeleteFunc(slices.Clone(both), func(s *discoveryv1.EndpointSlice) bool {
			return s.AddressType == discoveryv1.AddressTypeIPv6
		}))...)
		w.wantExit(3, "ForwardingOff: IPv4 is not forwarded")
		if text, _ := w.agent.CLI("status"); strings.Contains(text, "IPv6 is not forwarded") {
			t.Errorf("no Service needs IPv6, but status says:\n%s", text)
		}
		w.apply("web", objects(s, both)...)
		w.setForwarding("1")
		w.wantExit(0)
		for _, to := range addresses(w.Host("node-a"), nodePort) {
			w.wantServed("tcp", to, "b1")
			w.wantServed("udp", to, "b1")
		}
	})
}

// --set-sysctls enables the forwarding that the Services need, and nothing else.
func TestForwardingIsSet(t *testing.T) {
	w := newWorld(t, "--set-sysctls")
	w.setForwarding("0")
	w.must(w.agent.Start())
	s, both := w.public("b1")
	of4 := slices.DeleteFunc(slices.Clone(both), func(s *discoveryv1.EndpointSlice) bool {
		return s.AddressType != discoveryv1.AddressTypeIPv4
	})
	w.apply("web", objects(s, of4)...)
	to := addresses(w.Host("node-a"), nodePort)
	w.eventually("IPv4 is forwarded", func() bool { return w.forwards(service.IPv4) == "1" })
	w.wantServed("udp", to[0], "b1")
	if v := w.forwards(service.IPv6); v != "0" {
		t.Errorf("IPv6 is forwarded (%s), but nothing needs it", v)
	}
	w.apply("web", objects(s, both)...)
	w.eventually("IPv6 is forwarded", func() bool { return w.forwards(service.IPv6) == "1" })
	w.wantServed("udp", to[1], "b1")
	w.wantExit(0)
}

// forwards is node-a's forwarding setting for a family.
func (w *world) forwards(family service.Family) string {
	w.t.Helper()
	name := map[service.Family]string{service.IPv4: "ipv4/ip_forward", service.IPv6: "ipv6/conf/all/forwarding"}[family]
	var text []byte
	w.must(w.agent.Host.Do(func() (err error) {
		text, err = os.ReadFile("/proc/sys/net/" + name)
		return err
	}))
	return string(text[:1])
}
