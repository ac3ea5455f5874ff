// SPDX-License-Identifier: Apache-2.0

package flowtable

import (
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	mdnetlink "github.com/mdlayher/netlink"
	"github.com/mdlayher/netlink/nlenc"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/node/netdev"
)

// Ranges of a set are sorted, and those that overlap or touch are one.
func TestSpans(t *testing.T) {
	networks := func(texts ...string) (all []netip.Prefix) {
		for _, text := range texts {
			all = append(all, netip.MustParsePrefix(text))
		}
		return all
	}
	for _, c := range []struct {
		got  []span
		want string
	}{
		{spans(networks("10.0.1.9/24", "10.0.0.0/24", "10.0.3.0/24", "10.0.3.7/32", "fd00::/8"), false), "10.0.0.0-10.0.1.255 10.0.3.0-10.0.3.255"},
		{spans(networks("0.0.0.0/0", "10.0.0.0/8", "255.255.255.255/32"), false), "0.0.0.0-255.255.255.255"},
		{spans(networks("fd00::/127", "10.0.0.0/8"), true), "fd00::-fd00::1"},
	} {
		var got []string
		for _, s := range c.got {
			got = append(got, fmt.Sprintf("%s-%s", net.IP(s.first), net.IP(s.last)))
		}
		if text := strings.Join(got, " "); text != c.want {
			t.Errorf("spans are %s, want %s", text, c.want)
		}
	}
	ports := portSpans([]bpf.PortRange{{First: 443, Last: 443}, {First: 80, Last: 90}, {First: 1, Last: 79}, {First: 65535, Last: 65535}})
	if len(ports) != 3 || after(ports[2].last) != nil {
		t.Errorf("spans of ports are %v", ports)
	}
}

// Which messages about neighbours and bridges concern flows.
func TestNetwork(t *testing.T) {
	n := &network{links: map[int]netdev.Device{}, valid: map[hop]neighbour{}, fdb: map[fdbKey]int{}}
	const bridge, portA, portB = 7, 8, 9
	neigh := func(state int, mac byte) *netlink.Neigh {
		return &netlink.Neigh{Family: unix.AF_INET, LinkIndex: bridge, State: state, IP: net.IPv4(10, 0, 0, 1), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, mac}}
	}
	entry := func(port int, mac byte) *netlink.Neigh {
		return &netlink.Neigh{Family: unix.AF_BRIDGE, LinkIndex: port, MasterIndex: bridge, State: netlink.NUD_REACHABLE, HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, mac}}
	}
	for i, c := range []struct {
		message               uint16
		neigh                 *netlink.Neigh
		added, removed, moved int
	}{
		{unix.RTM_NEWNEIGH, neigh(netlink.NUD_INCOMPLETE, 0), 0, 0, 0},
		{unix.RTM_NEWNEIGH, neigh(netlink.NUD_REACHABLE, 1), 1, 0, 0},
		{unix.RTM_NEWNEIGH, neigh(netlink.NUD_STALE, 1), 0, 0, 0},
		{unix.RTM_NEWNEIGH, neigh(netlink.NUD_REACHABLE, 2), 0, 0, 1}, // another MAC
		{unix.RTM_NEWNEIGH, entry(portA, 2), 0, 0, 0},
		{unix.RTM_NEWNEIGH, entry(portA, 3), 0, 0, 0},
		{unix.RTM_DELNEIGH, entry(portA, 2), 0, 0, 0}, // expired
		{unix.RTM_NEWNEIGH, entry(portB, 2), 0, 0, 1}, // moved meanwhile
		{unix.RTM_NEWNEIGH, entry(portB, 3), 0, 0, 0}, // no next hop's
		{unix.RTM_NEWNEIGH, neigh(netlink.NUD_FAILED, 2), 0, 1, 1},
		{unix.RTM_DELNEIGH, neigh(netlink.NUD_FAILED, 2), 0, 0, 0},
		{unix.RTM_NEWNEIGH, neigh(netlink.NUD_PERMANENT, 2), 1, 0, 0},
		{unix.RTM_DELNEIGH, neigh(netlink.NUD_PERMANENT, 2), 0, 1, 1},
	} {
		if got := n.neighbour(c.message, c.neigh); len(got.added) != c.added || len(got.removed) != c.removed || len(got.moved) != c.moved || got.all != "" {
			t.Errorf("message %d: %+v, want %d added, %d removed, %d moved", i, got, c.added, c.removed, c.moved)
		}
	}
}

// fakeKernel acknowledges all requests, but refuses to offload to the hardware of one device.
type fakeKernel struct {
	refuses   string
	committed map[string]string // table: devices and flags of its flowtable
}

func (k *fakeKernel) answer(requests []mdnetlink.Message) (answers []mdnetlink.Message, err error) {
	batch, refused := map[string]string{}, false
	for _, r := range requests {
		var text string
		code := 0
		switch uint16(r.Header.Type) {
		case unix.NFNL_MSG_BATCH_BEGIN, unix.NFNL_MSG_BATCH_END:
			continue
		case unix.NFNL_SUBSYS_NFTABLES<<8 | nftables.NFT_MSG_NEWFLOWTABLE:
			table, devices, flags := parseFlowtable(r.Data[4:])
			text = fmt.Sprintf("%s flags %d", strings.Join(devices, " "), flags)
			batch[table] = text
			if flags&uint32(nftables.FlowtableFlagsHWOffload) != 0 && slices.Contains(devices, k.refuses) {
				code, refused = int(unix.EOPNOTSUPP), true
			}
		case unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETTABLE:
			return []mdnetlink.Message{{Header: mdnetlink.Header{Type: mdnetlink.Done, Flags: mdnetlink.Multi, Sequence: r.Header.Sequence, PID: r.Header.PID}, Data: make([]byte, 4)}}, nil
		}
		answers = append(answers, mdnetlink.Message{
			Header: mdnetlink.Header{Type: mdnetlink.Error, Sequence: r.Header.Sequence, PID: r.Header.PID},
			Data:   append(nlenc.Int32Bytes(int32(-code)), make([]byte, 16)...),
		})
	}
	if !refused {
		maps.Copy(k.committed, batch)
	}
	return answers, nil
}

func parseFlowtable(b []byte) (table string, devices []string, flags uint32) {
	ad, _ := mdnetlink.NewAttributeDecoder(b)
	for ad.Next() {
		switch ad.Type() {
		case nftables.NFTA_FLOWTABLE_TABLE:
			table = ad.String()
		case nftables.NFTA_FLOWTABLE_FLAGS:
			flags = uint32(ad.Bytes()[3])
		case nftables.NFTA_FLOWTABLE_HOOK:
			ad.Nested(func(hook *mdnetlink.AttributeDecoder) error {
				for hook.Next() {
					if hook.Type() == nftables.NFTA_FLOWTABLE_DEVS {
						hook.Nested(func(names *mdnetlink.AttributeDecoder) error {
							for names.Next() {
								devices = append(devices, names.String())
							}
							return nil
						})
					}
				}
				return nil
			})
		}
	}
	return table, devices, flags
}

// Devices that accept flows in hardware get a flowtable of their own there, and are in that of the software, too, for
// flows to the others.
func TestHardware(t *testing.T) {
	k := &fakeKernel{refuses: "b", committed: map[string]string{}}
	f := New(nil, slog.Default())
	f.connect = func() (*nftables.Conn, error) { return nftables.New(nftables.WithTestDial(k.answer)) }
	n := &network{links: map[int]netdev.Device{1: {Name: "a"}, 2: {Name: "b"}, 3: {Name: "c"}}}
	c := Config{Devices: []string{"c", "a", "b"}, Hardware: true}
	report, err := f.choose(n, c, Report{})
	must(t, err)
	if !slices.Equal(report.HardwareDevices, []string{"a", "c"}) || !slices.Equal(report.SoftwareDevices, []string{"a", "b", "c"}) || len(report.RefusedDevices) > 0 {
		t.Errorf("the report is %+v", report)
	}
	if why := report.RefusedHardwareDevices["b"]; why != "its driver cannot offload flows: EOPNOTSUPP (operation not supported)" {
		t.Errorf("b is refused because %q", why)
	}
	clear(k.committed)
	must(t, f.write(n, &c, report, n.above(report.SoftwareDevices)))
	if want := map[string]string{TableName: "a b c flags 2", HardwareTableName: "a c flags 3"}; !maps.Equal(k.committed, want) {
		t.Errorf("the flowtables are %v, want %v", k.committed, want)
	}
}
