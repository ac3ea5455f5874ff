// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// R41: NodeLocal DNSCache in its usual form. The node has the ClusterIP of the name servers on a device, a cache has
// bound it, and rules exempt the packets from conntrack, and so from kube-proxy's DNAT. Pods, by their sockets and by
// packets, and the node reach the cache. One or two of the three are no sign: a device of IPVS has all ClusterIPs.
func TestNodeLocalCache(t *testing.T) {
	w := startWorld(t)
	host := w.Host("node-a")
	s, slices := w.public("b1")
	node.SetPorts(s, slices,
		node.Port{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53, Target: lab.PortUDP},
		node.Port{Name: "dns-tcp", Protocol: corev1.ProtocolTCP, Port: 53, Target: lab.PortTCP})
	w.optOut("a2")
	w.apply("dns", objects(s, slices)...)
	var to []netip.AddrPort
	for _, ip := range s.Spec.ClusterIPs {
		to = append(to, netip.AddrPortFrom(netip.MustParseAddr(ip), 53))
	}
	run := func(argv ...string) {
		t.Helper()
		if out, err := host.Command(t.Context(), argv...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", argv, err, out)
		}
	}
	// reach has the answer of each client over each protocol and family.
	reach := func(when, want string) {
		t.Helper()
		for _, client := range []string{"a1", "a2", "node-a"} {
			for _, network := range []string{"udp", "tcp"} {
				for _, at := range to {
					var got string
					w.eventually(fmt.Sprintf("%s: %s asks %s over %s, answered by %s", when, client, at, network, want), func() bool {
						got = askOnce(w.Host(client), network, at)
						return got == want
					})
				}
			}
		}
	}
	reach("at first", "b1")
	run("ip", "link", "add", "nodelocaldns", "type", "bridge")
	run("ip", "link", "set", "nodelocaldns", "up")
	for _, at := range to {
		run("ip", "addr", "add", netip.PrefixFrom(at.Addr(), at.Addr().BitLen()).String(), "dev", "nodelocaldns", "nodad")
	}
	reach("with the address", "b1")
	stop := startCache(t, host, to)
	time.Sleep(2 * time.Second) // the agent looks once a second
	reach("with the address and a socket", "b1")
	stop()
	run("nft", fmt.Sprintf(`add table inet dns; add chain inet dns c { type filter hook prerouting priority raw; }; add chain inet dns o { type filter hook output priority raw; };
		add rule inet dns c ip daddr %[1]s meta l4proto { tcp, udp } th dport 53 notrack; add rule inet dns c ip6 daddr %[2]s meta l4proto { tcp, udp } th dport 53 notrack;
		add rule inet dns o ip saddr %[1]s meta l4proto { tcp, udp } th sport 53 notrack; add rule inet dns o ip6 saddr %[2]s meta l4proto { tcp, udp } th sport 53 notrack`, to[0].Addr(), to[1].Addr()))
	time.Sleep(2 * time.Second)
	reach("with the address and the rule", "b1")
	stop = startCache(t, host, to)
	reach("with all three", "cache")
	w.eventually("status says so", func() bool { return w.status().Conditions.Has(condition.ClusterIPLeftToNode) })
	w.must(w.agent.Stop())
	reach("without an agent", "cache")
	w.must(w.agent.Start())
	reach("with the next agent", "cache")
	stop()
	reach("without the cache", "b1")
}

// startCache answers at addresses of a host until stop is called.
func startCache(t *testing.T, host *lab.Host, at []netip.AddrPort) (stop func()) {
	t.Helper()
	var all []io.Closer
	answer := []byte(`{"pod":"cache"}` + "\n")
	for _, a := range at {
		datagrams, err := host.ListenPacket("udp", a.String())
		if err != nil {
			t.Fatal(err)
		}
		lines, err := host.Listen("tcp", a.String())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, datagrams, lines)
		go func() {
			buffer := make([]byte, 100)
			for {
				_, from, err := datagrams.ReadFrom(buffer)
				if err != nil {
					return
				}
				_, _ = datagrams.WriteTo(answer, from)
			}
		}()
		go func() {
			for {
				conn, err := lines.Accept()
				if err != nil {
					return
				}
				_, _ = conn.Write(answer)
				conn.Close()
			}
		}()
	}
	stop = func() {
		for _, c := range all {
			c.Close()
		}
		all = nil
	}
	t.Cleanup(stop)
	return stop
}

// askOnce returns which pod answers one request, or the error.
func askOnce(from *lab.Host, network string, to netip.AddrPort) string {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	conn, err := from.Dial(ctx, network, to.String())
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return err.Error()
	}
	if _, err := conn.Write([]byte("question\n")); err != nil {
		return err.Error()
	}
	line := make([]byte, 2000)
	n, err := conn.Read(line)
	if err != nil {
		return err.Error()
	}
	line = line[:n]
	var answer lab.Answer
	if err := json.Unmarshal(line, &answer); err != nil {
		return err.Error()
	}
	return answer.Pod
}
