// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"bytes"
	"context"
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// pinger sends echo requests with one identifier.
type pinger struct {
	*rawSocket
	sequence uint16
	request  byte
	reply    byte
}

func (w *world) pinger(host string, family int) *pinger {
	w.t.Helper()
	if family == 0 {
		return &pinger{w.raw(w.Host(host), family, unix.IPPROTO_ICMP), 0, 8, 0}
	}
	return &pinger{w.raw(w.Host(host), family, unix.IPPROTO_ICMPV6), 0, 128, 129}
}

const pingID, pingPayload = 0xbee1, "an odd number of bytes"

// ping sends a request. The kernel computes ICMPv6's checksum, and drops a reply whose checksum is wrong.
func (p *pinger) ping(to netip.Addr) {
	p.t.Helper()
	p.sequence++
	b := binary.BigEndian.AppendUint16([]byte{p.request, 0, 0, 0}, pingID)
	b = append(binary.BigEndian.AppendUint16(b, p.sequence), pingPayload...)
	if p.request == 8 {
		binary.BigEndian.PutUint16(b[2:], ^sumOf(b))
	}
	p.send(to, b)
}

func sumOf(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(b[i]) << 8
		if i+1 < len(b) {
			sum += uint32(b[i+1])
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

// answer waits for the next reply.
func (p *pinger) answer() (sequence uint16, from netip.Addr) {
	p.t.Helper()
	_, b, from := first(p.t, func(b []byte) bool {
		return len(b) >= 8 && b[0] == p.reply && binary.BigEndian.Uint16(b[4:]) == pingID
	}, p.rawSocket)
	if !bytes.Equal(b[8:], []byte(pingPayload)) {
		p.t.Errorf("%s echoes %q", from, b[8:])
	}
	if p.reply == 0 && sumOf(b) != 0xffff {
		p.t.Errorf("%s echoes with a wrong checksum: %x", from, b)
	}
	return binary.BigEndian.Uint16(b[6:]), from
}

// wantEcho checks that an address replies, by the edge or by the node's stack.
func (p *pinger) wantEcho(to netip.Addr, byEdge bool) {
	p.t.Helper()
	before := p.status().Edge.Counters["echo"]
	p.ping(to)
	if sequence, from := p.answer(); sequence != p.sequence || from != to {
		p.t.Errorf("ping %d of %s: %s replies to %d", p.sequence, to, from, sequence)
	}
	if after := p.status().Edge.Counters["echo"]; (after > before) != byEdge {
		p.t.Errorf("ping of %s: the edge replied %d times, want it to: %v", to, after-before, byEdge)
	}
}

// wantNoEcho checks that an address does not reply before the node replies to a later ping.
func (p *pinger) wantNoEcho(to netip.Addr) {
	p.t.Helper()
	p.ping(to)
	p.wantEcho(p.nodeAddress(), false)
}

func (p *pinger) nodeAddress() netip.Addr {
	n := p.Host("node-a")
	if p.own.Is6() {
		return n.Addr6
	}
	return n.Addr4
}

// Pings of load balancers' and external IPs get replies while the Service serves external clients, and those of
// a ClusterIP never (R21); the node's stack replies for its own addresses. Source ranges apply to pings as well
// (R25).
func TestPing(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := borrowWorld(t, "--edge-mode="+mode)
		w.services()
		for family := range 2 {
			p := w.pinger("client", family)
			ip := func(kind string, n int) netip.Addr { return w.address(kind, n, family).Addr() }
			for _, kind := range []string{"ExternalIP", "LoadBalancer"} {
				p.wantEcho(ip(kind, 1), true) // balanced
				p.wantEcho(ip(kind, 5), true) // local
				p.wantNoEcho(ip(kind, 2))     // no endpoints
				p.wantNoEcho(ip(kind, 3))     // traffic policy Local, none here
				p.wantNoEcho(ip(kind, 200))   // of no Service
				q := w.pinger("b2", family)   // a pod of another node
				q.wantEcho(ip(kind, 1), true)
			}
			p.wantEcho(ip("ExternalIP", 4), true)
			p.wantNoEcho(ip("LoadBalancer", 4)) // not admitted
			p.wantNoEcho(ip("ClusterIP", 1))
			p.wantEcho(ip("NodePort", 1), false)
			a := w.explain(p.own.String(), ip("LoadBalancer", 1).String()+"/icmp")
			if a.Reason != "echo" || a.Verdict != "answer" || a.Service != "default/web" || a.Hook != mode {
				t.Errorf("explain says %+v", a)
			}
			if a := w.explain(p.own.String(), ip("LoadBalancer", 4).String()+"/icmp"); a.Reason != "drop_source" || a.Service != "default/admitted" {
				t.Errorf("explain says %+v", a)
			}
		}
		s, all := w.everywhere("here", 5, "b1")
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		w.apply("here", objects(s, all)...)
		for family := range 2 {
			p := w.pinger("client", family)
			p.wantNoEcho(w.address("LoadBalancer", 5, family).Addr())
			p.wantEcho(w.address("LoadBalancer", 1, family).Addr(), true)
		}
		text, err := w.agent.CLI("service", "list")
		w.must(err)
		line := "default/web ICMP echo " + w.address("LoadBalancer", 1, 0).Addr().String() + " ICMP answer pass answer applied"
		if !strings.Contains(strings.Join(strings.Fields(text), " "), line) {
			t.Errorf("service list does not say %q:\n%s", line, text)
		}
	})
}

// An address that replies to pings has no more ports than before: sockets and packets for another port pass.
func TestPortsBesideEcho(t *testing.T) {
	w := borrowWorld(t, "--edge-mode=tc")
	w.lead()
	w.apply("web", objects(w.everywhere("web", 1, "a1", "b1"))...)
	for family := range 2 {
		to := netip.AddrPortFrom(w.address("LoadBalancer", 1, family).Addr(), 81)
		before := w.status().SocketCounters
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			if conn, err := w.Host("node-a").Dial(ctx, "tcp", to.String()); err == nil {
				conn.Close()
				t.Errorf("something answers at %s", to)
			}
		}()
		udp, err := w.Host("a1").Dial(ctx, "udp", to.String())
		w.must(err)
		if peer := udp.RemoteAddr().String(); peer != to.String() {
			t.Errorf("a socket connected to %s has the peer %s", to, peer)
		}
		udp.Close()
		w.eventually("both calls pass", func() bool { return w.status().SocketCounters.ConnectPass >= before.ConnectPass+2 })
		cancel()
		<-ended
		if after := w.status().SocketCounters; after.ConnectReject != before.ConnectReject || after.ConnectDrop != before.ConnectDrop || after.ConnectBalance != before.ConnectBalance {
			t.Errorf("%s: counted %+v, before %+v", to, after, before)
		}
		if a := w.explained("connect", addresses(w.Host("a1"), 0)[family].Addr().String(), to.String()); a.Verdict != "pass" || a.Frontend != nil {
			t.Errorf("explain says %+v", a)
		}
		if a := w.explain(addresses(w.Host("client"), 40000)[family].String(), to.String()); a.Reason != "not_service" {
			t.Errorf("explain says %+v", a)
		}
	}
}
