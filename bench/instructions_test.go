// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink/nl"
)

// Time is a count of instructions only if all take the same.
func TestCommonTime(t *testing.T) {
	for _, c := range []struct {
		addition, division float64
		want               int64 // 0: refused
	}{
		{1.003, 1.001, 1}, {8.02, 8.01, 8}, {1, 1.05, 0}, {0.05, 0.34, 0}, {0.05, 0.05, 0}, {1.5, 1.5, 0}, {0, 0, 0},
	} {
		got, err := commonTime(c.addition, c.division)
		if got.Nanoseconds() != c.want || (err == nil) != (c.want > 0) {
			t.Errorf("%g and %g ns: %d ns (%v), want %d", c.addition, c.division, got, err, c.want)
		}
	}
}

// The kernel's counters are per CPU, in hexadecimal; its sums lag behind.
func TestParseIPVSCounts(t *testing.T) {
	const text = `       Total Incoming Outgoing         Incoming         Outgoing
CPU    Conns  Packets  Packets            Bytes            Bytes
  0       1F       20        0              800                0
  A        1       10        5              400               20
  ~        3        4        0               10                0

     Conns/s   Pkts/s   Pkts/s          Bytes/s          Bytes/s
           0        0        0                0                0
`
	connections, packets, err := parseIPVSCounts(text)
	if err != nil || connections != 0x20 || packets != 0x30 {
		t.Errorf("%#x connections, %#x packets (%v), want 0x20 and 0x30", connections, packets, err)
	}
	for _, bad := range []string{"", strings.ReplaceAll(text, "1F", "1G")} {
		if _, _, err := parseIPVSCounts(bad); err == nil {
			t.Errorf("taken: %q", bad)
		}
	}
}

// Addresses and ports are in network byte order, addresses padded to those of IPv6.
func TestIPVSAttributes(t *testing.T) {
	service := ipvsServiceAttribute(netip.MustParseAddrPort("192.0.2.1:80")).Serialize()
	inside, err := nl.ParseRouteAttr(service[4:])
	if err != nil {
		t.Fatal(err)
	}
	found := map[uint16][]byte{}
	for _, a := range inside {
		found[a.Attr.Type] = a.Value
	}
	for kind, want := range map[uint16][]byte{
		ipvsServiceAddress: append([]byte{192, 0, 2, 1}, make([]byte, 12)...), ipvsServicePort: {0, 80}, ipvsServiceScheduler: []byte("rr\x00"),
	} {
		if !bytes.Equal(found[kind], want) {
			t.Errorf("attribute %d is %v, want %v", kind, found[kind], want)
		}
	}
}
