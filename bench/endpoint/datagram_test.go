// SPDX-License-Identifier: Apache-2.0

package endpoint_test

import (
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"beeline.io/beeline/bench/endpoint"
	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/needs"
)

func TestMain(m *testing.M) {
	lab.Main()
	endpoint.Main()
	os.Exit(m.Run())
}

// A datagram client tolerates a server that loses some, answers twice or pauses as a busy machine does, and
// fails if that would invalidate the measurement.
func TestDatagramClient(t *testing.T) {
	needs.Root(t)
	t.Parallel()
	cpus, _, err := harness.ChooseCPUs()
	if err != nil {
		t.Fatal(err)
	}
	l := lab.New(t)
	other, err := l.Host("a2").ListenPacket("udp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { other.Close() })
	for _, c := range []struct {
		name   string
		mode   endpoint.Mode
		answer func(n uint64, conn net.PacketConn, question []byte, client net.Addr) // the n-th datagram
		resent uint64                                                                // at least
		wrong  string                                                                // part of the error, if any
		many   bool                                                                  // sockets, with the default patience
	}{
		{"loses one", endpoint.UDPUnconnected, func(n uint64, conn net.PacketConn, question []byte, client net.Addr) {
			if n != 1 {
				conn.WriteTo(question, client)
			}
		}, 1, "", false},
		{"loses one of a connected socket", endpoint.UDPConnected, func(n uint64, conn net.PacketConn, question []byte, client net.Addr) {
			if n != 1 {
				conn.WriteTo(question, client)
			}
		}, 1, "", false},
		{"answers twice", endpoint.UDPUnconnected, func(_ uint64, conn net.PacketConn, question []byte, client net.Addr) {
			conn.WriteTo(question, client)
			conn.WriteTo(question, client)
		}, 0, "", false},
		{"pauses", endpoint.UDPUnconnected, func(n uint64, conn net.PacketConn, question []byte, client net.Addr) {
			if n == 1 {
				time.Sleep(3 * time.Second)
			}
			conn.WriteTo(question, client)
		}, 0, "", true},
		{"answers from elsewhere", endpoint.UDPUnconnected, func(_ uint64, _ net.PacketConn, question []byte, client net.Addr) {
			other.WriteTo(question, client)
		}, 0, "replied", false},
		{"never answers", endpoint.UDPUnconnected, func(uint64, net.PacketConn, []byte, net.Addr) {}, 0, "has not answered", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			conn, err := l.Host("a2").ListenPacket("udp4", "0.0.0.0:0")
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			go func() {
				question := make([]byte, 16)
				for seen := uint64(1); ; seen++ {
					n, client, err := conn.ReadFrom(question)
					if err != nil {
						return
					}
					c.answer(seen, conn, question[:n], client)
				}
			}()
			connections, lostAfter := 1, time.Second
			if c.many {
				connections, lostAfter = 2*endpoint.LostMost, 0
			}
			port := conn.LocalAddr().(*net.UDPAddr).Port
			result, err := endpoint.RunClient(t.Context(), l.Host("a1"), endpoint.ClientConfig{
				Mode: c.mode, Target: netip.AddrPortFrom(l.Host("a2").Addr4, uint16(port)), Connections: connections,
				Warmup: time.Millisecond, Measure: 20 * time.Millisecond, CPU: cpus.Client, LostAfter: lostAfter,
			})
			if (err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
				t.Fatalf("%v, want an error with %q", err, c.wrong)
			}
			if err == nil && (result.Resent < c.resent || c.many && result.Resent > 0 || result.Received < result.Sent-result.Resent || result.Operations == 0) {
				t.Errorf("%+v", result)
			}
		})
	}
}
