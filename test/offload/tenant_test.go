// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/lab"
)

// The tenants of one device with keys by packet (vxlan external), their keys, and their servers. The addresses of both
// tenants are the same, and those of both servers.
const (
	networkTenant  = 50
	networkBehind  = 60
	networkUnder   = 11 // and 12: between router and tenants
	tenantMAC      = "02:00:00:00:50:02"
	tenantPort     = 4791
	tenantKey      = 800
	tenantSource   = 5000 // of both clients
	tenantRequests = 40
	tableMain      = 254
)

var tenants = []struct{ client, server, under, behind string }{
	{"tenant a", "server a", "u0", "v0"},
	{"tenant b", "server b", "u1", "v1"},
}

// tenants connects them to the router. What arrives with the first one's key is routed to its server by the main
// table, what arrives with the other one's by a rule for its key, which the flow cache does not see; answers are routed
// by the device of their server. So packets of the first take the cache, and the same packets of the other take the
// stack.
func (w *world) tenants() {
	w.t.Helper()
	w.ip("router", fmt.Sprintf("link add vx8 address 02:00:00:00:50:01 mtu 1450 type vxlan external dstport %d", tenantPort), "link set vx8 up",
		"addr add 10.50.0.1/24 dev vx8", "neigh add 10.50.0.2 lladdr "+tenantMAC+" dev vx8")
	for i, t := range tenants {
		key, under := tenantKey+i, networkUnder+i
		w.link(t.client, t.under, under)
		a, b := family(0).address(under, 1), family(0).address(under, 2)
		w.ip(t.client, fmt.Sprintf("link add vx0 address %s mtu 1450 type vxlan id %d local %s remote %s dstport %d dev eth0", tenantMAC, key, b, a, tenantPort),
			"link set vx0 up", "addr add 10.50.0.2/24 dev vx0", "neigh add 10.50.0.1 lladdr 02:00:00:00:50:01 dev vx0", "route add 10.60.0.0/24 via 10.50.0.1")
		w.wire(t.server, t.behind, 120+i)
		w.ip("router", "addr add 10.60.0.1/24 dev "+t.behind+" noprefixroute", "link set "+t.behind+" up",
			fmt.Sprintf("route add 10.60.0.0/24 dev %s table %d", t.behind, []int{tableMain, key}[i]),
			fmt.Sprintf("route add 10.50.0.0/24 encap ip id %d dst %s dev vx8 table %d", key, b, key),
			fmt.Sprintf("rule add iif %s table %d", t.behind, key))
		if i > 0 {
			w.keyRule(key)
		}
		w.ip(t.server, "addr add 10.60.0.2/24 dev eth0", "link set eth0 up", "route add default via 10.60.0.1")
	}
}

// keyRule routes packets with a key by a table of that number. ip(8) knows no such rules.
func (w *world) keyRule(key int) {
	w.t.Helper()
	request := nl.NewNetlinkRequest(unix.RTM_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	message := nl.NewRtMsg()
	message.Family, message.Table, message.Type = unix.AF_INET, unix.RT_TABLE_UNSPEC, unix.FR_ACT_TO_TBL
	request.AddData(message)
	request.AddData(nl.NewRtAttr(nl.FRA_IIFNAME, nl.ZeroTerminated("vx8")))
	request.AddData(nl.NewRtAttr(nl.FRA_TABLE, nl.Uint32Attr(uint32(key))))
	request.AddData(nl.NewRtAttr(nl.FRA_TUN_ID, binary.BigEndian.AppendUint64(nil, uint64(key))))
	w.must(w.host("router").Do(func() error {
		_, err := request.Execute(unix.NETLINK_ROUTE, 0)
		return err
	}))
}

// sameAddresses has both tenants send from and to the same addresses and ports, in turn.
func (w *world) sameAddresses() {
	w.t.Helper()
	port := w.port()
	to := netip.AddrPortFrom(family(0).address(networkBehind, 2), port)
	var conns []net.Conn
	for _, t := range tenants {
		server, err := w.host(t.server).ListenPacket("udp", to.String())
		w.must(err)
		defer server.Close()
		go answer(server, t.server)
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		conn, err := w.host(t.client).DialWith(ctx, lab.DialOptions{Local: netip.AddrPortFrom(family(0).address(networkTenant, 2), tenantSource)}, "udp", to.String())
		w.must(err)
		defer conn.Close()
		conns = append(conns, conn)
	}
	exchange := func(requests int) {
		for i, conn := range conns {
			for range requests {
				w.wantAnswer(conn, tenants[i].server)
			}
		}
	}
	// The tenants have one entry in conntrack, because they have one tuple. The kernel takes it for established
	// after two seconds.
	w.eventually("of two requests and two answers one request takes the stack", func() bool {
		exchange(tenantRequests)
		seen := w.onStack(port)
		exchange(1)
		return *stack || w.onStack(port)-seen == 1
	})
	for end := time.Now().Add(soon); time.Now().Before(end); time.Sleep(soon / 20) {
		exchange(tenantRequests)
	}
}

// answer answers each datagram with a name.
func answer(conn net.PacketConn, name string) {
	b := make([]byte, 2048)
	for {
		_, from, err := conn.ReadFrom(b)
		if err != nil {
			return
		}
		conn.WriteTo([]byte(name), from) // the client misses it if this fails
	}
}

func (w *world) wantAnswer(conn net.Conn, want string) {
	w.t.Helper()
	w.must(conn.SetDeadline(time.Now().Add(patience / 6)))
	_, err := conn.Write([]byte("whose?"))
	w.must(err)
	b := make([]byte, 64)
	n, err := conn.Read(b)
	w.must(err)
	if got := string(b[:n]); got != want {
		w.t.Fatalf("%s answered, want %s", got, want)
	}
}
