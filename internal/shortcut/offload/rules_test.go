// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node"
	"beeline.io/beeline/internal/node/flow"
	"beeline.io/beeline/internal/node/netns"
)

// A rule at the output of a bridge, and a filter or queue of tc at egress, see what software forwards and not what NICs
// forward: with hardware they keep flows on the stack, and only chosen flows are in the flowtable.
func TestRulesThatOnlyHardwareBypasses(t *testing.T) {
	for name, commands := range map[string][]string{
		"rule at the output of a bridge": {"nft add table bridge t", "nft add chain bridge t c { type filter hook output priority 0 ; }", "nft add rule bridge t c udp dport 53 log"},
		"filter of tc at egress":         {"tc qdisc add dev br0 clsact", "tc filter add dev br0 egress protocol ip u32 match ip protocol 17 0xff flowid 1:1"},
		"queue":                          {"tc qdisc add dev br0 root tbf rate 1mbit burst 10k latency 10ms"},
	} {
		t.Run(name, func(t *testing.T) {
			n, err := netns.New()
			if err != nil {
				t.Fatal(err)
			}
			defer n.Close()
			if err := n.Do(func() error {
				for _, c := range append([]string{"ip link add br0 type bridge", "ip link add eth0 type veth peer name peer0"}, commands...) {
					argv := strings.Fields(c)
					if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
						t.Errorf("%s: %v: %s", c, err, out)
					}
				}
				return wantOnlyHardware(t)
			}); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// wantOnlyHardware asks about a flow from eth0 to br0.
func wantOnlyHardware(t *testing.T) error {
	var devices []Device
	for _, name := range []string{"eth0", "br0"} {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		devices = append(devices, Device{Index: l.Attrs().Index, Name: name, Bridge: name == "br0"})
	}
	r, err := newRules(new(node.Network), func(uint32) (string, bool) { return "", true })
	if err != nil {
		return err
	}
	defer r.watcher.Close()
	o := &Offload{rules: r, config: Config{}}
	if _, err := r.compare(devices); err != nil {
		return err
	}
	tuple := flow.Tuple{Source: netip.MustParseAddrPort("192.0.2.1:1000"), Destination: netip.MustParseAddrPort("10.0.0.1:53"), Protocol: unix.IPPROTO_UDP}
	one := flow.Flow{In: tuple, Out: tuple, InDevice: devices[0].Index, OutDevice: devices[1].Index}
	for provider, refused := range map[Provider]bool{Hardware: true, Flowtable: false, Cache: false} {
		o.use(provider, "")
		if got := o.refusal(one); (got != "") != refused {
			t.Errorf("%s: the flow is refused because of %q, want refused: %t", provider, got, refused)
		}
		if c := o.flowtableConfig(devices, provider); c.OnlyChosen != refused || (len(r.findings()) > 0) != refused {
			t.Errorf("%s: only chosen flows: %t, filters %v; want %t", provider, c.OnlyChosen, r.findings(), refused)
		}
	}
	return nil
}
