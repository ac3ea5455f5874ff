// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/test/lab"
)

// checkedServices are Services of a stand-alone balancer, one for each kind of health check. Their VIPs end
// with their index in the list.
var checkedServices = []struct {
	name           string
	port, endpoint uint16
	annotations    string
}{
	{"line", 80, lab.PortTCP, `{beeline.io/health-check: tcp}`},
	{"site", 80, lab.PortHTTP, `{beeline.io/health-check: http, beeline.io/health-check-path: /healthz}`},
	{"safe", 443, 8443, `{beeline.io/health-check: https, beeline.io/health-check-tls-verify: "off"}`},
	{"other-port", 80, lab.PortTCP, `{beeline.io/health-check: http, beeline.io/health-check-port: "8081"}`},
}

// checkedVIP is the address of the nth of checkedServices.
func checkedVIP(n, family int) netip.Addr {
	return netip.MustParseAddr([]string{fmt.Sprintf("203.0.113.%d", 10+n), fmt.Sprintf("2001:db8:f::%d", 10+n)}[family])
}

// checkedManifest has checkedServices with these endpoints; node returns the node of each, or "" if no agent is
// there.
func (w *world) checkedManifest(endpoints []netip.AddrPort, node func(netip.Addr) string) string {
	w.t.Helper()
	var text strings.Builder
	for n, s := range checkedServices {
		vips := []netip.Addr{checkedVIP(n, 0), checkedVIP(n, 1)}
		fmt.Fprintf(&text, "apiVersion: v1\nkind: Service\nmetadata: {name: %s, annotations: %s}\n", s.name, s.annotations)
		fmt.Fprintf(&text, "spec: {clusterIP: \"%[1]s\", clusterIPs: [\"%[1]s\", \"%[2]s\"], ipFamilies: [IPv4, IPv6], externalIPs: [\"%[1]s\", \"%[2]s\"], ports: [{name: p, port: %[3]d}]}\n---\n", vips[0], vips[1], s.port)
		for _, e := range endpoints {
			port, kind := e.Port(), "IPv4"
			if port == 0 {
				port = s.endpoint
			}
			if e.Addr().Is6() {
				kind = "IPv6"
			}
			fmt.Fprintf(&text, "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: %[1]s-%[2]s, labels: {kubernetes.io/service-name: %[1]s}}\naddressType: %[3]s\nports: [{name: p, port: %[4]d}]\nendpoints: [{addresses: [\"%[5]s\"]%[6]s}]\n---\n",
				s.name, sliceName(e.Addr()), kind, port, e.Addr(), node(e.Addr()))
		}
	}
	file := filepath.Join(w.t.TempDir(), "vips.yaml")
	w.must(os.WriteFile(file, []byte(strings.ReplaceAll(text.String(), "beeline.io/health-check:", "beeline.io/health-check-interval: 500ms, beeline.io/health-check-timeout: 500ms, beeline.io/health-check:")), 0o644))
	return file
}

// sliceName is an address as a part of the name of an object.
func sliceName(a netip.Addr) string {
	return strings.NewReplacer(":", "-", ".", "-").Replace(a.String())
}

// wantChecked waits until the endpoints at these addresses fail in all of checkedServices, for a reason with
// these words, and no others do.
func (w *world) wantChecked(all int, words string, down ...netip.Addr) {
	w.t.Helper()
	var got []string
	w.t.Cleanup(func() {
		if w.t.Failed() {
			w.t.Logf("down were %q", got)
		}
	})
	w.must(w.agent.WaitFor(fmt.Sprintf("%v down %s", down, words), func(s *api.Status) bool {
		if s.Health == nil || s.Health.Targets != all || len(s.Health.Down) != len(down)*len(checkedServices) {
			return false
		}
		got = nil
		for _, b := range s.Health.Down {
			got = append(got, b.String())
			named := false
			for _, a := range down {
				named = named || b.Address.Addr() == a
			}
			if !named || b.CheckPending || !strings.Contains(b.Why, words) {
				return false
			}
		}
		return true
	}))
}

// serveTLS serves TLS at a pod's port, besides the servers that each pod has.
func (w *world) serveTLS(ca *authority, pod string) {
	w.t.Helper()
	l, err := w.Host(pod).Listen("tcp", "[::]:8443")
	w.must(err)
	server := &http.Server{TLSConfig: ca.config("any"), Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
	w.t.Cleanup(func() { server.Close() })
	go server.ServeTLS(l, "", "")
}

// X2, H3: the health check of a Service with DSR takes the path of its clients' packets: if a node does not
// accept such packets, its backends are down, although they answer at their own addresses, and clients go to
// others. Once it accepts them, they are up again. The VIPs are the balancer's own addresses, as in
// docs/operate/dsr.md.
func TestHealthChecksGoByDSR(t *testing.T) {
	inVariants(t, dsrVariants, func(t *testing.T, variant string) {
		kind, mode, _ := strings.Cut(variant, " ")
		words := map[string]string{"ipip": "through IPIP to ", "geneve": "through Geneve to ", "opt": "through an IP option to "}[kind]
		flags := []string{"--edge-mode=" + mode, "--dsr=" + kind}
		w := newWorldOf(t, threeNodes, flags...)
		own, ca := addresses(w.agent.Host, 0), newAuthority(t)
		if kind != "opt" { // clients cannot be balancers, and the balancer probes from its own address
			flags = append(flags, fmt.Sprintf("--dsr-balancers=%s/32,%s/128", own[0].Addr(), own[1].Addr()))
		}
		b := w.agentOn("node-b", flags...)
		w.agentOn("node-c", flags...)
		var endpoints []netip.AddrPort
		for _, pod := range []string{"b1", "c1"} {
			endpoints = append(endpoints, addresses(w.Host(pod), 0)...)
			w.serveTLS(ca, pod)
		}
		file := w.checkedManifest(endpoints, func(a netip.Addr) string {
			for _, pod := range []string{"b1", "c1"} {
				if h := w.Host(pod); a == h.Addr4 || a == h.Addr6 {
					return ", nodeName: " + h.Node.Name
				}
			}
			return ""
		})
		for _, a := range w.agents {
			a.Manifests = file
		}
		for n := range checkedServices {
			for family := range 2 {
				vip := checkedVIP(n, family)
				w.must(addRoute(w.Host("fabric"), "node-a", &netlink.Route{Dst: netlink.NewIPNet(vip.AsSlice()), Gw: own[family].Addr().AsSlice()}))
				w.must(w.agent.Host.AddAddress("lo", netip.PrefixFrom(vip, vip.BitLen())))
			}
		}
		w.startAgents()
		targets := 2 * len(endpoints) / 2 * len(checkedServices)
		served := func(pods ...string) {
			t.Helper()
			for family := range 2 {
				w.wantServed("tcp", netip.AddrPortFrom(checkedVIP(0, family), 80), pods...)
				w.wantServed("tcp", netip.AddrPortFrom(checkedVIP(3, family), 80), pods...)
			}
		}
		w.wantChecked(targets, "")
		served("b1", "c1")
		show, err := w.agent.CLI("service", "show", "site")
		w.must(err)
		if n := strings.Count(show, "("+words); n != len(endpoints) {
			t.Errorf("service show contains %d times that checks go %s:\n%s", n, words, show)
		}

		w.must(b.Kill())
		_, err = b.CLI("cleanup")
		w.must(err)
		w.wantChecked(targets, words, w.Host("b1").Addr4, w.Host("b1").Addr6)
		if n := w.status().Edge.Counters["drop_no_route"]; n > 0 {
			t.Errorf("%d of node-b's ICMP errors about the checks are counted as packets to clients without a route", n)
		}
		list, err := w.agent.CLI("backend", "list")
		w.must(err)
		if !strings.Contains(list, "down") || !strings.Contains(list, words) {
			t.Errorf("backend list does not say what failed:\n%s", list)
		}
		for _, a := range addresses(w.Host("b1"), lab.PortTCP) {
			if _, err := w.askAs("node-a", "tcp", a); err != nil {
				t.Errorf("b1 does not answer at its own address: %v", err)
			}
		}
		served("c1")
		// A backend of weight 0 drains: its node has it in no set, and accepts what a balancer sends to it all
		// the same.
		equal, err := os.ReadFile(file)
		w.must(err)
		drained := string(equal)
		for _, a := range []netip.Addr{w.Host("b1").Addr4, w.Host("b1").Addr6} {
			slice := sliceName(a) + ", "
			drained = strings.ReplaceAll(drained, slice, slice+`annotations: {beeline.io/weight: "0"}, `)
		}
		w.must(os.WriteFile(file, []byte(drained), 0o644))
		w.must(b.Start())
		w.wantChecked(targets, "")
		served("c1")
		w.must(os.WriteFile(file, equal, 0o644))
		w.eventually("the weight is that of before", func() bool {
			answer, err := w.ask("tcp", netip.AddrPortFrom(checkedVIP(0, 0), 80))
			return err == nil && answer.Pod == "b1"
		})
		served("b1", "c1")
	})
}
