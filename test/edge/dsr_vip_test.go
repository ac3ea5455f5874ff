// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"beeline.io/beeline/test/lab"
)

// standAlone is a file with a VIP for each family, without Nodes.
func (w *world) standAlone(vips []netip.Addr, pods ...string) string {
	w.t.Helper()
	var text strings.Builder
	fmt.Fprintf(&text, `apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  clusterIP: %[1]s
  clusterIPs: ["%[1]s", "%[2]s"]
  ipFamilies: [IPv4, IPv6]
  externalIPs: ["%[1]s", "%[2]s"]
  ports:
  - {name: tcp, port: 80}
  - {name: udp, port: 80, protocol: UDP}
`, vips[0], vips[1])
	for family, kind := range []string{"IPv4", "IPv6"} {
		fmt.Fprintf(&text, `---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-%d, labels: {kubernetes.io/service-name: web}}
addressType: %s
ports:
- {name: tcp, port: %d}
- {name: udp, port: %d, protocol: UDP}
endpoints:
`, family, kind, lab.PortTCP, lab.PortUDP)
		for _, pod := range pods {
			host := w.Host(pod)
			machine := cmp.Or(host.Node, host)
			fmt.Fprintf(&text, "- {addresses: [\"%s\"], nodeName: %s}\n", addresses(host, 0)[family].Addr(), machine.Name)
		}
	}
	file := filepath.Join(w.t.TempDir(), "vips.yaml")
	w.must(os.WriteFile(file, []byte(text.String()), 0o644))
	return file
}

// L1, L3, X2: a stand-alone balancer serves with DSR VIPs that are routed to it, and VIPs that are addresses of
// its loopback: the backends' nodes read the same file, in which each finds its own name, and accept its
// packets by --dsr-balancers. Without that flag they drop and count them. (Not so for opt, which has no outer
// source.)
func TestStandAloneDSR(t *testing.T) {
	inVariants(t, dsrVariants, func(t *testing.T, variant string) {
		kind, mode, _ := strings.Cut(variant, " ")
		standAloneDSR(t, kind, mode)
	})
}

func standAloneDSR(t *testing.T, kind, mode string) {
	w := newWorldOf(t, threeNodes, "--edge-mode="+mode, "--dsr="+kind)
	vips := []netip.Addr{netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("2001:db8:f::10")}
	file := w.standAlone(vips, "b1", "b2", "c1")
	own := addresses(w.agent.Host, 0)
	flags := []string{"--edge-mode=" + mode}
	if kind == "opt" { // a Service with another kind accepts no options
		flags = append(flags, "--dsr=opt")
	}
	w.agentOn("node-b", append(flags, fmt.Sprintf("--dsr-balancers=%s/32,%s/128", own[0].Addr(), own[1].Addr()))...)
	w.agentOn("node-c", append(flags, "--dsr-balancers=192.168.100.0/30,fd00:100::/126")...)
	for _, a := range w.agents {
		a.Manifests = file
	}
	w.startAgents()
	for family, vip := range vips {
		w.must(addRoute(w.Host("fabric"), "node-a", &netlink.Route{Dst: netlink.NewIPNet(vip.AsSlice()), Gw: own[family].Addr().AsSlice()}))
	}
	check := func(how string) {
		t.Helper()
		for family, vip := range vips {
			for _, network := range []string{"tcp", "udp"} {
				for _, answer := range w.wantServed(network, netip.AddrPortFrom(vip, 80), "b1", "b2", "c1") {
					if answer.Peer.Addr() != w.clientOf(family) {
						t.Errorf("%s, %s to %s: %s sees %s, want the client's address", how, network, vip, answer.Pod, answer.Peer)
					}
				}
			}
		}
	}
	check("routed")
	for _, vip := range vips {
		w.must(w.agent.Host.AddAddress("lo", netip.PrefixFrom(vip, vip.BitLen())))
	}
	check("on the loopback")
	w.wantNoDropsAnywhere()

	if kind == "opt" {
		return
	}
	b := w.agents["node-b"]
	w.must(b.Kill())
	b.Flags = []string{"--edge-mode=" + mode}
	w.must(b.Start())
	before := w.countAt(b, "drop_spoofed")
	for range tries {
		w.datagram(netip.AddrPortFrom(vips[0], 80))
	}
	w.eventually("node-b drops packets of strangers", func() bool { return w.countAt(b, "drop_spoofed") > before })
}

// A backend's machine that decapsulates for a program of its own forwards nothing, and its status asks for no
// forwarding.
func TestBackendMachineForwardsNothing(t *testing.T) {
	w := newWorldOf(t, threeNodes, "--edge-mode=tc", "--dsr=ipip")
	vips := []netip.Addr{netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("2001:db8:f::10")}
	own, file := addresses(w.agent.Host, 0), w.standAlone(vips, "node-b", "c1")
	for _, node := range []string{"node-b", "node-c"} {
		w.agentOn(node, "--edge-mode=tc", "--dsr=ipip", fmt.Sprintf("--dsr-balancers=%s/32,%s/128", own[0].Addr(), own[1].Addr()))
	}
	for _, a := range w.agents {
		a.Manifests = file
	}
	b := w.agents["node-b"]
	w.must(b.Host.StartServer(lab.ServerOptions{}))
	w.setForwardingOf(b.Host, "0")
	w.startAgents()
	for family, vip := range vips {
		w.must(addRoute(w.Host("fabric"), "node-a", &netlink.Route{Dst: netlink.NewIPNet(vip.AsSlice()), Gw: own[family].Addr().AsSlice()}))
		for _, network := range []string{"tcp", "udp"} {
			w.wantServed(network, netip.AddrPortFrom(vip, 80), "c1", "node-b")
		}
	}
	if out, err := b.CLI("status"); err != nil || !strings.HasPrefix(out, "All is well.") {
		t.Errorf("the status of a backend's machine: %v\n%s", err, out)
	}
	w.wantNoDropsAnywhere()
}
