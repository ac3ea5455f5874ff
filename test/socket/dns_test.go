// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// The numbers of the Services in a world with DNS.
const (
	nameserver  = 53 // the name servers
	sameServers = 54 // another Service of the same name servers
	nobody      = 55 // no endpoints: refuses
	silent      = 56 // its endpoint receives queries and never replies
	webService  = 80
)

// portDNS is where name servers listen in their pods: not at 53, like name servers without privileges.
const portDNS = 5353

// zone contains all names, as in a cluster.
const zone = "default.svc.cluster.local"

// A dnsWorld has name servers in pods and Services in front of them. Each name server knows these names:
//
//	who.<zone>      its own pod's addresses, which identify the server
//	web.<zone>      the ClusterIPs of a web server; web-0 to web-19, too
//	many.<zone>     more addresses than a plain datagram holds
type dnsWorld struct {
	*world
	servers []*lab.Host
}

func startDNSWorld(t *testing.T, servers string) *dnsWorld {
	t.Helper()
	w := &dnsWorld{world: startWorld(t, "node-a")}
	w.servers = w.hosts(servers)
	for _, pod := range w.servers {
		w.must(pod.StopServer())
		w.must(pod.StartServer(lab.ServerOptions{DNS: lab.DNSOptions{Port: portDNS, Names: names(pod)}}))
	}
	b3 := w.Host("b3")
	deaf, err := b3.ListenPacket("udp", fmt.Sprintf("[::]:%d", portDNS))
	w.must(err)
	t.Cleanup(func() { deaf.Close() })
	w.applyDNS("dns", nameserver, servers)
	w.applyDNS("dns-too", sameServers, servers)
	w.applyDNS("nobody", nobody, "")
	w.applyDNS("silent", silent, "b3")
	service, slices := w.web("web", webService, "b2")
	node.SetPorts(service, slices, node.Port{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, Target: lab.PortHTTP})
	w.apply("web", objects(service, slices)...)
	return w
}

// applyDNS makes a Service of name servers.
func (w *dnsWorld) applyDNS(name string, n uint8, pods string) {
	w.t.Helper()
	service, slices := w.web(name, n, pods)
	node.SetPorts(service, slices,
		node.Port{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53, Target: portDNS},
		node.Port{Name: "dns-tcp", Protocol: corev1.ProtocolTCP, Port: 53, Target: portDNS})
	w.apply(name, objects(service, slices)...)
}

// names are the names that a pod's name server knows.
func names(pod *lab.Host) map[string][]netip.Addr {
	web := []netip.Addr{ipv4.clusterIP(webService).Addr(), ipv6.clusterIP(webService).Addr()}
	all := map[string][]netip.Addr{
		"who." + zone: {pod.Addr4, pod.Addr6},
		"web." + zone: web,
	}
	for i := range 20 {
		all[fmt.Sprintf("web-%d.%s", i, zone)] = web
	}
	for i := 1; i <= manyAddresses; i++ {
		all["many."+zone] = append(all["many."+zone],
			netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), netip.MustParseAddr(fmt.Sprintf("2001:db8::%x", i)))
	}
	return all
}

// manyAddresses of 16 bytes at least, each with its name: more than 512 bytes.
const manyAddresses = 40

// serverOf is the name server pod with an address, or "".
func (w *dnsWorld) serverOf(address string) string {
	addr, err := netip.ParseAddr(address)
	for _, pod := range w.servers {
		if err == nil && (addr == pod.Addr4 || addr == pod.Addr6) {
			return pod.Name
		}
	}
	return ""
}

// resolvConf is what the kubelet writes, with these Services as name servers.
func resolvConf(f family, options string, services ...uint8) etc {
	var text strings.Builder
	for _, n := range services {
		fmt.Fprintf(&text, "nameserver %s\n", f.clusterIP(n).Addr())
	}
	fmt.Fprintf(&text, "search %s svc.cluster.local cluster.local\noptions ndots:5 %s\n", zone, options)
	return etc{"resolv.conf": text.String(), "nsswitch.conf": "hosts: dns\n"}
}

// S4: dig prints which server it asked, and warns of replies from others and of missing ones; it does not
// retry.
func TestDig(t *testing.T) {
	wantProgram(t, "dig", "bind9-dnsutils")
	w := startDNSWorld(t, "a2 b1")
	for _, from := range w.hosts("a1 a2 node-a") {
		for _, f := range []family{ipv4, ipv6} {
			for _, transport := range []string{"+notcp", "+tcp"} {
				t.Run(strings.Join([]string{from.Name, f.name, transport}, " "), func(t *testing.T) {
					w.digWho(t, from, f, transport)
					w.digPod(t, from, f, transport)
					w.digMany(t, from, f, transport)
				})
			}
		}
	}
}

// dig sends one query. Any warning of dig fails the test.
func (w *dnsWorld) dig(t *testing.T, from *lab.Host, f family, query ...string) string {
	t.Helper()
	server := f.clusterIP(nameserver).Addr().String()
	out, errOut, err := execute(t, from, nil, append([]string{"dig", "@" + server, "+tries=1", "+time=10"}, query...)...)
	if err != nil {
		t.Fatal(err)
	}
	complaint := regexp.MustCompile(`(?i)unexpected|mismatch|timed out|refused|malformed`)
	if found := complaint.FindString(out + errOut); found != "" {
		t.Errorf("dig @%s %v on %s complains of %q:\n%s%s", server, query, from.Name, found, out, errOut)
	}
	if want := fmt.Sprintf(";; SERVER: %s#53(", server); !strings.Contains(out, want) && !slices.Contains(query, "+short") {
		t.Errorf("dig @%s %v on %s does not say %q:\n%s", server, query, from.Name, want, out)
	}
	return out
}

func (w *dnsWorld) digWho(t *testing.T, from *lab.Host, f family, transport string) {
	t.Helper()
	for _, kind := range []string{"A", "AAAA"} {
		out := w.dig(t, from, f, transport, "who."+zone, kind)
		answer := regexp.MustCompile(`(?m)^who\.\S+\s+\d+\s+IN\s+` + kind + `\s+(\S+)$`).FindStringSubmatch(out)
		if !strings.Contains(out, "status: NOERROR") || answer == nil || w.serverOf(answer[1]) == "" {
			t.Errorf("dig %s on %s got no address of a name server's pod:\n%s", kind, from.Name, out)
		}
	}
}

func (w *dnsWorld) digPod(t *testing.T, from *lab.Host, f family, transport string) {
	t.Helper()
	for _, query := range [][]string{{"who." + zone, "TXT"}, {"hostname.bind", "CH", "TXT"}, {"+noedns", "web." + zone, "TXT"}} {
		out := w.dig(t, from, f, append(query, transport, "+short")...)
		pod := strings.Trim(strings.TrimSpace(out), `"`)
		if !slices.ContainsFunc(w.servers, func(h *lab.Host) bool { return h.Name == pod }) {
			t.Errorf("dig %v on %s: pod %q answers, want a name server", query, from.Name, pod)
		}
	}
}

// digMany asks for more than a datagram holds: dig then repeats the query by TCP.
func (w *dnsWorld) digMany(t *testing.T, from *lab.Host, f family, transport string) {
	t.Helper()
	out := w.dig(t, from, f, transport, "+noedns", "many."+zone, "A")
	if got := strings.Count(out, "IN\tA\t192.0.2."); got != manyAddresses {
		t.Errorf("dig on %s got %d addresses, want %d:\n%s", from.Name, got, manyAddresses, out)
	}
	if again := strings.Contains(out, "retrying in TCP mode"); again != (transport == "+notcp") {
		t.Errorf("dig %s on %s came again by TCP: %t:\n%s", transport, from.Name, again, out)
	}
}
