// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestPlanHasUniqueNamesAndAddresses(t *testing.T) {
	inside := Shape{Network: NetworkRouted, Pods: PodsPolicy, TwoNICs: true, ThreeNodes: true}
	for _, shape := range []Shape{largest, inside} {
		t.Run(shape.String(), func(t *testing.T) { checkUnique(t, shape) })
	}
}

func checkUnique(t *testing.T, shape Shape) {
	owner := map[netip.Addr]string{}
	names := map[string]bool{}
	for _, h := range plan(shape).hosts {
		if names[h.name] {
			t.Errorf("two hosts are named %s", h.name)
		}
		names[h.name] = true
		for _, addr := range []netip.Addr{h.addr4, h.addr6} {
			if other, taken := owner[addr]; taken {
				t.Errorf("%s belongs to %s and %s", addr, other, h.name)
			}
			owner[addr] = h.name
		}
	}
	if len(names) != 15 {
		t.Errorf("%d hosts, want 3 nodes, 9 pods, two clients and fabric", len(names))
	}
}

// No two labs may share a namespace name, whatever they are called.
func TestHostNamesAreNoSuffixOfEachOther(t *testing.T) {
	for _, a := range plan(largest).hosts {
		for _, b := range plan(largest).hosts {
			if strings.HasSuffix(a.name, "-"+b.name) {
				t.Errorf("%s ends like %s: lab x and lab x-%s would share a namespace",
					a.name, b.name, strings.TrimSuffix(a.name, "-"+b.name))
			}
		}
	}
}

func TestServiceRangesAreRoutedNowhere(t *testing.T) {
	for _, h := range plan(largest).hosts {
		for _, r := range h.routes {
			isDefault := r.to.Bits() == 0
			if !isDefault && (r.to.Overlaps(ServiceRange4) || r.to.Overlaps(ServiceRange6)) {
				t.Errorf("host %s has a route to %s", h.name, r.to)
			}
			if isDefault && h.role == RoleFabric {
				t.Errorf("the fabric has a default route: packets to unknown addresses would not end there")
			}
		}
	}
}

func TestDeviceNamesFit(t *testing.T) {
	for _, l := range plan(largest).links {
		for _, device := range []string{l.device, l.peerDevice} {
			if len(device) >= unix.IFNAMSIZ {
				t.Errorf("device name %s is longer than %d", device, unix.IFNAMSIZ-1)
			}
		}
	}
}

func TestPodCgroupIsTheKubelets(t *testing.T) {
	const uuid = `[0-9a-f]{8}SEP[0-9a-f]{4}SEP4[0-9a-f]{3}SEP[89ab][0-9a-f]{3}SEP[0-9a-f]{12}`
	for layout, pattern := range map[CgroupLayout]string{
		LayoutSystemd: `^/r/node-a/kubepods\.slice/kubepods-burstable\.slice/kubepods-burstable-pod` +
			strings.ReplaceAll(uuid, "SEP", "_") + `\.slice/cri-containerd-[0-9a-f]{64}\.scope$`,
		LayoutCgroupfs: `^/r/node-a/kubepods/burstable/pod` + strings.ReplaceAll(uuid, "SEP", "-") + `/[0-9a-f]{64}$`,
	} {
		got := hostCgroup("/r", layout, "x", plan(Shape{}).host("a2"))
		if !regexp.MustCompile(pattern).MatchString(got) {
			t.Errorf("%s: %s does not match %s", layout, got, pattern)
		}
	}
	if podUID("x", "a1") == podUID("x", "a2") || podUID("x", "a1") == podUID("y", "a1") {
		t.Error("two pods have one UID")
	}
}

func TestLabNames(t *testing.T) {
	for name, ok := range map[string]bool{
		"demo": true, "a": true, "t0123456789": true, "x-y": true, strings.Repeat("a", 24): true,
		"": false, "-a": false, "a-": false, "A": false, "a/b": false, "..": false, "a.b": false, strings.Repeat("a", 25): false,
	} {
		if err := checkName(name); (err == nil) != ok {
			t.Errorf("name %q: %v, want ok=%v", name, err, ok)
		}
	}
}

func TestParseEndpoint(t *testing.T) {
	for _, c := range []struct {
		network, address string
		mapped           bool
		family           int // 0: refused
	}{
		{"tcp", "10.0.0.1:80", false, unix.AF_INET},
		{"tcp", "[fd00::1]:80", false, unix.AF_INET6},
		{"tcp", "10.0.0.1:80", true, unix.AF_INET6},
		{"tcp4", "10.0.0.1:80", false, unix.AF_INET},
		{"tcp4", "10.0.0.1:80", true, unix.AF_INET6},
		{"udp6", "[::ffff:10.0.0.1]:80", false, unix.AF_INET6},
		{"udp4", "[fd00::1]:80", false, 0},
		{"tcp6", "10.0.0.1:80", false, 0},
		{"sctp", "10.0.0.1:80", false, 0},
		{"tcp46", "10.0.0.1:80", false, 0},
		{"tcp", "localhost:80", false, 0},
		{"tcp", "10.0.0.1", false, 0},
	} {
		e, err := parseEndpoint(c.network, c.address, c.mapped)
		if (err == nil) != (c.family != 0) || err == nil && e.family != c.family {
			t.Errorf("%s %s mapped=%v: family %d, %v; want %d", c.network, c.address, c.mapped, e.family, err, c.family)
		}
	}
}

func TestUnescapeMount(t *testing.T) {
	if got, want := unescapeMount(`/a\040b\134c`), `/a b\c`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
