// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/api"
)

// A routing is a way in which node-a routes to the pods of node-b and to the client. In its commands are the names of
// routeNames, and MTU is an MTU.
type routing struct {
	name     string
	do, undo string
	mtu      [2]bool // towards the pods, towards the client
	needs    string  // of the kernel: a command of the node that fails without it
}

// routeNames are what stands for names in commands, for each family.
var routeNames = [2]*strings.Replacer{
	strings.NewReplacer("IP", "ip -4", "PODS", "10.10.2.0/24", "CLIENTS", "192.168.200.0/24", "GATEWAY", "192.168.100.254", "FAMILY", "4"),
	strings.NewReplacer("IP", "ip -6", "PODS", "fd00:10:2::/64", "CLIENTS", "fd00:200::/64", "GATEWAY", "fd00:100::fe", "FAMILY", "6"),
}

const (
	plainRoutes = "IP route replace PODS via GATEWAY; IP route replace CLIENTS via GATEWAY"
	noTable     = "; IP rule del pref 70; IP route flush table 70"
)

var towardsBoth, towardsPods = [2]bool{true, true}, [2]bool{true, false}

var routeMTUs = []routing{
	{name: "plain", do: "IP route replace PODS via GATEWAY mtu MTU; IP route replace CLIENTS via GATEWAY mtu MTU", undo: plainRoutes, mtu: towardsBoth},
	{name: "locked", do: "IP route replace PODS via GATEWAY mtu lock MTU; IP route replace CLIENTS via GATEWAY mtu lock MTU", undo: plainRoutes, mtu: towardsBoth},
	{
		name: "another table", mtu: towardsBoth,
		do: "IP route add default via GATEWAY mtu MTU table 70; IP rule add pref 70 lookup 70", undo: "true" + noTable,
	},
	{
		name: "a route without an MTU inside", mtu: towardsPods,
		do: "IP route add default via GATEWAY mtu MTU table 70; IP route add CLIENTS via GATEWAY table 70; IP rule add pref 70 lookup 70", undo: "true" + noTable,
	},
	{
		name: "a narrower route of a table that is not used", mtu: [2]bool{},
		do: "IP route add default via GATEWAY metric 7 mtu MTU table 70; IP rule add pref 70 from 192.0.2.0/24 lookup 70 2>/dev/null || IP rule add pref 70 from 2001:db8::/32 lookup 70", undo: "true" + noTable,
	},
	{
		name: "two next hops, of an object", mtu: towardsBoth,
		do:   "IP nexthop add id FAMILY1 via GATEWAY dev eth0; IP nexthop add id FAMILY2 via GATEWAY dev eth0 onlink; ip nexthop add id FAMILY3 group FAMILY1/FAMILY2; IP route replace PODS nhid FAMILY3 mtu MTU; IP route replace CLIENTS nhid FAMILY3 mtu MTU",
		undo: plainRoutes + "; ip nexthop del id FAMILY3; ip nexthop del id FAMILY2; ip nexthop del id FAMILY1",
	},
}

// route runs the commands of a routing at node-a, for both families.
func (w *world) route(commands string) {
	w.t.Helper()
	for _, names := range routeNames {
		w.runOn("node-a", "sh", "-ec", names.Replace(commands))
	}
}

// forgetMTUs has those who learn MTUs forget them.
func (w *world) forgetMTUs() {
	w.t.Helper()
	for _, host := range []string{"client", "b1"} {
		w.runOn(host, "sh", "-c", "ip route flush cache; ip -6 route flush cache")
	}
}

// The MTU of a route counts in whatever way the route comes to be used: what is longer and may not be fragmented is
// answered with it, in both directions; also without an agent. A route that is not used does not count.
func TestRouteMTUs(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := startWorld(t, "--edge-mode="+mode)
		w.apply("web", objects(w.public("b1"))...)
		mtu := 1450
		for _, r := range routeMTUs {
			mtu -= 10
			unread := r.name == "locked" // the programs obey it although no agent has read it
			if unread {
				w.must(w.agent.Kill())
			}
			w.route(strings.ReplaceAll(r.do, "MTU", fmt.Sprint(mtu)))
			w.wantRouteMTUs(r, mtu)
			if r.name == "another table" {
				w.must(w.agent.Kill())
				w.wantRouteMTUs(r, mtu)
			}
			if unread || r.name == "another table" {
				w.must(w.agent.Start())
			}
			w.route(r.undo)
			w.wantRouteMTUs(routing{name: "after " + r.name}, mtu)
		}
	})
}

// wantRouteMTUs waits until the client and the backend have the MTUs of a routing, and checks that they keep them.
func (w *world) wantRouteMTUs(r routing, mtu int) {
	w.t.Helper()
	node := w.Host("node-a")
	for family, own := range []netip.Addr{node.Addr4, node.Addr6} {
		want := [2]int{fabricMTU, fabricMTU}
		for i, narrow := range r.mtu {
			if narrow {
				want[i] = mtu
			}
		}
		var got, before [2]int
		w.eventually(fmt.Sprintf("%s, IPv%d: MTUs are %v", r.name, 4+2*family, want), func() bool {
			w.forgetMTUs()
			stream := w.open("tcp", netip.AddrPortFrom(own, nodePort))
			defer stream.Close()
			if err := transfer(stream, "b1", 1<<20); err != nil {
				w.t.Errorf("%s: %v", r.name, err)
				return true
			}
			got = [2]int{w.knownMTU("client", own, family), w.knownMTU("b1", own, family)}
			if got != before {
				w.t.Logf("%s, IPv%d: MTUs are %v", r.name, 4+2*family, got)
			}
			before = got
			return got == want
		})
	}
}

// Routings by more than the destination. Each route in table main that does not serve is unreachable.
var routingsByMore = []routing{
	{name: "the source", do: "IP route add PODS via GATEWAY table 70; IP rule add pref 70 from CLIENTS lookup 70; IP route replace unreachable PODS", undo: "IP route del unreachable PODS; " + plainRoutes + noTable},
	{name: "the backend's port", do: "IP route add PODS via GATEWAY table 70; IP rule add pref 70 ipproto udp dport 8080 lookup 70; IP rule add pref 70 ipproto tcp dport 8080 lookup 70; IP route replace unreachable PODS", undo: "IP route del unreachable PODS; " + plainRoutes + "; IP rule del pref 70" + noTable},
	{name: "the backend's port, back", do: "IP route add CLIENTS via GATEWAY table 70; IP rule add pref 70 from PODS sport 8080 lookup 70; IP route replace unreachable CLIENTS", undo: "IP route del unreachable CLIENTS; " + plainRoutes + noTable},
	{name: "the client's port", do: "IP route add PODS via GATEWAY table 70; IP rule add pref 70 sport 30000-65534 lookup 70; IP route replace unreachable PODS", undo: "IP route del unreachable PODS; " + plainRoutes + noTable},
	{name: "the protocol", do: "IP rule add pref 70 ipproto sctp unreachable", undo: "IP rule del pref 70"},
	{name: "the device", do: "IP route add PODS via GATEWAY table 70; IP rule add pref 70 iif eth0 lookup 70; IP route replace unreachable PODS", undo: "IP route del unreachable PODS; " + plainRoutes + noTable},
	{name: "no default route of table main", do: "IP route add PODS via GATEWAY table 70; IP rule add pref 69 lookup main suppress_prefixlength 0; IP rule add pref 70 lookup 70; IP route del PODS via GATEWAY", undo: "IP rule del pref 69; " + plainRoutes + noTable},
	{name: "no mark", do: "IP route add PODS via GATEWAY table 70; IP rule add pref 70 not fwmark 7 lookup 70; IP rule add pref 69 fwmark 7 prohibit; IP route replace unreachable PODS", undo: "IP rule del pref 69; IP route del unreachable PODS; " + plainRoutes + noTable},
	{name: "an IPv6 next hop", do: "IP route replace PODS via inet6 fd00:100::fe dev eth0; IP route replace CLIENTS via inet6 fd00:100::fe dev eth0", undo: plainRoutes},
	{
		name: "an outer header", needs: "ip link add vx77 type vxlan external dstport 4799 && ip link del vx77",
		do: "IP route replace PODS encap ip id 77 dst 192.168.100.2 via inet6 fe80::77 dev vx77", undo: plainRoutes,
	},
}

// Services are served by routes that the stack finds by more than the destination: by what a packet has after its
// destination is translated, and before its source is.
func TestRoutingByMore(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := startWorld(t, "--edge-mode="+mode)
		w.apply("web", objects(w.public("b1"))...)
		for _, r := range routingsByMore {
			if r.needs != "" {
				if out, err := w.Host("node-a").Command(w.t.Context(), "sh", "-ec", r.needs).CombinedOutput(); err != nil {
					w.t.Logf("%s is not tested: the kernel lacks it: %s", r.name, out)
					continue
				}
				w.tunnel()
			}
			w.route(r.do)
			for _, to := range addresses(w.Host("node-a"), nodePort) {
				w.wantRouted(r.name, to)
			}
			w.route(r.undo)
		}
	})
}

// wantRouted waits until the backend is reached, and checks that it then is by each flow.
func (w *world) wantRouted(name string, to netip.AddrPort) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("by %s %s is reached", name, to), func() bool {
		_, err := w.ask("tcp", to)
		return err == nil
	})
	for _, network := range []string{"tcp", "udp", "tcp", "udp"} {
		if answer, err := w.ask(network, to); err != nil || answer.Pod != "b1" {
			w.t.Errorf("by %s, %s, %s: %+v, %v", name, network, to, answer, err)
		}
	}
}

// tunnel makes a tunnel between node-a and node-b whose outer addresses come from routes, at node-b's end for all that
// pods answer.
func (w *world) tunnel() {
	w.t.Helper()
	for i, host := range []string{"node-a", "node-b"} {
		w.runOn(host, "sh", "-ec", fmt.Sprintf(`ip link add vx77 type vxlan external dstport 4799; ip link set vx77 address 02:00:00:00:77:0%[1]d up; ip addr add fe80::77:%[1]d/64 dev vx77 nodad
ip -6 neigh add fe80::77 lladdr 02:00:00:00:77:0%[2]d dev vx77`, i+1, 2-i))
	}
	w.runOn("node-b", "sh", "-ec", `ip route replace 192.168.100.1/32 encap ip id 77 dst 192.168.100.1 via inet6 fe80::77 dev vx77 table 70; ip rule add from 10.10.2.0/24 lookup 70
ip -6 route replace fd00:100::1/128 encap ip id 77 dst 192.168.100.1 via fe80::77 dev vx77 table 70; ip -6 rule add from fd00:10:2::/64 lookup 70
echo 0 > /proc/sys/net/ipv4/conf/vx77/rp_filter; echo 0 > /proc/sys/net/ipv4/conf/all/rp_filter; echo 1 > /proc/sys/net/ipv6/conf/vx77/forwarding`)
}

// The traffic class chooses a route for each packet of a flow: its rule has an effect on packets with it alone, also
// where a packet of the flow without it has just passed.
func TestRoutingByTrafficClass(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := startWorld(t, "--edge-mode="+mode)
		w.apply("web", objects(w.public("b1"))...)
		w.route("IP rule add pref 70 tos 0x10 unreachable") // an error that a connected socket ignores
		for family, to := range addresses(w.Host("node-a"), nodePort) {
			conn := w.open("udp", to)
			w.eventually("packets with the traffic class are dropped", func() bool {
				setTrafficClass(w.t, conn.(syscall.Conn), family, 0)
				w.served(conn)
				setTrafficClass(w.t, conn.(syscall.Conn), family, 0x10)
				before := w.counted("drop_no_route")
				if _, err := conn.Write([]byte("hello\n")); err != nil {
					w.t.Fatal(err)
				}
				setTrafficClass(w.t, conn.(syscall.Conn), family, 0)
				w.served(conn) // so the other packet has arrived
				return w.counted("drop_no_route") == before+1
			})
		}
		w.route("IP rule del pref 70")
	})
}

func (w *world) counted(reason string) uint64 { return w.status().Edge.Counters[reason] }

func setTrafficClass(t *testing.T, conn syscall.Conn, family, class int) {
	t.Helper()
	control(t, conn, func(fd int) error {
		if family == 0 {
			return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TOS, class)
		}
		return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_TCLASS, class)
	})
}

// What the edge cannot ask is a condition that names the rule, as long as it is there.
func TestRulesThatAreBypassed(t *testing.T) {
	w := startWorld(t)
	for _, rule := range []struct{ text, message string }{{"fwmark 7/15", "rule 70 by fwmark 0x7/0xf"}, {"tun_id 7", "rule 70 by tun_id"}} {
		w.runOn("node-a", append([]string{"ip", "rule", "add", "pref", "70", "lookup", "70"}, strings.Fields(rule.text)...)...)
		w.must(w.agent.WaitFor("the condition about "+rule.text, func(s *api.Status) bool { return hasCondition(s, "EdgeBypassesRules", rule.message) }))
		w.runOn("node-a", "ip", "rule", "del", "pref", "70")
		w.must(w.agent.WaitFor("the end of the condition", func(s *api.Status) bool { return !hasCondition(s, "EdgeBypassesRules", "") }))
	}
}

func hasCondition(s *api.Status, code, message string) bool {
	for _, c := range s.Conditions {
		if string(c.Code) == code && strings.Contains(c.Message, message) {
			return true
		}
	}
	return false
}
