// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink/nl"
)

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
