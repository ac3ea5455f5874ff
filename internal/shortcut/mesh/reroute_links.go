// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"errors"
	"fmt"
	"net"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/node/netns"
)

// The rule and the route that deliver the packets with the program's mark to the pod's network namespace, as for
// TPROXY of netfilter. Priority and table are Beeline's own.
const (
	mark          = uint32(bpf.MeshRerouteMeshMarkMESH_MARK)
	rulePriority  = 15001
	routeTable    = 15001
	routeProtocol = 190 // RTPROT: who added it
)

var families = []struct {
	family int
	all    string
}{{unix.AF_INET, "0.0.0.0/0"}, {unix.AF_INET6, "::/0"}}

// AttachReroute attaches the program for what a virtual machine sends to devices in the network namespace of a pod,
// and detaches it from all others.
//
// Errors: ebpf.ErrNotSupported before Linux 6.6.
func (m *Datapath) AttachReroute(cgroup uint64, namespace *netns.Namespace, devices []int) error {
	cookie, err := namespace.Cookie()
	if err != nil {
		return err
	}
	if len(devices) > 0 {
		if err := m.attachReroute(cgroup, cookie, namespace, devices); err != nil {
			return err
		}
	}
	wanted := map[int]bool{}
	for _, device := range devices {
		wanted[device] = true
	}
	return m.removeLinks(func(l podLink) bool {
		return l.Owner == cgroup && l.device != 0 && !(l.netns == cookie && wanted[l.device])
	})
}

func (m *Datapath) attachReroute(cgroup, cookie uint64, namespace *netns.Namespace, devices []int) error {
	program, err := m.loadReroute(cookie)
	if err != nil {
		return err
	}
	defer program.Close()
	if err := namespace.Do(addRoutes); err != nil {
		return err
	}
	for _, device := range devices {
		hook := fmt.Sprintf("%s%d_%d", rerouteHook, cookie, device)
		if err := m.datapath.AttachLink(componentName, cgroup, hook, program, bpf.DeviceTarget{Index: device, Namespace: namespace}, ebpf.AttachTCXIngress); err != nil {
			return fmt.Errorf("attach to device %d: %w", device, err)
		}
	}
	return nil
}

// DetachReroute detaches the program from all devices of a pod.
func (m *Datapath) DetachReroute(cgroup uint64) error {
	return m.removeLinks(func(l podLink) bool { return l.Owner == cgroup && l.device != 0 })
}

func (m *Datapath) loadReroute(cookie uint64) (*ebpf.Program, error) {
	return m.loadAt(cookie, bpf.LoadMeshReroute, bpf.MeshRerouteProgBeelineMeshReroute)
}

func markRule(family int) *netlink.Rule {
	rule, mask := netlink.NewRule(), mark
	rule.Family, rule.Priority, rule.Table, rule.Mark, rule.Mask, rule.Protocol = family, rulePriority, routeTable, mark, &mask, routeProtocol
	return rule
}

func localRoute(family int, all string) *netlink.Route {
	_, to, _ := net.ParseCIDR(all)
	return &netlink.Route{Family: family, LinkIndex: bpf.LoopbackIndex, Dst: to, Table: routeTable, Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST, Protocol: routeProtocol}
}

// addRoutes adds the rules and routes of both families to the calling thread's network namespace. A family that the
// namespace does not have (disable_ipv6) is left out.
func addRoutes() error {
	for _, f := range families {
		err := netlink.RouteReplace(localRoute(f.family, f.all))
		if err == nil {
			err = netlink.RuleAdd(markRule(f.family))
		}
		without := f.family == unix.AF_INET6 && (errors.Is(err, unix.EACCES) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENETDOWN) || errors.Is(err, unix.ENODEV))
		if err != nil && !errors.Is(err, unix.EEXIST) && !without {
			return fmt.Errorf("add the route for virtual machines to table %d: %w", routeTable, err)
		}
	}
	return nil
}

// deleteRoutes is the inverse of addRoutes.
func deleteRoutes() (err error) {
	for _, f := range families {
		for _, e := range []error{netlink.RuleDel(markRule(f.family)), netlink.RouteDel(localRoute(f.family, f.all))} {
			if e != nil && !errors.Is(e, unix.ENOENT) && !errors.Is(e, unix.ESRCH) && !errors.Is(e, unix.EAFNOSUPPORT) && !errors.Is(e, unix.EOPNOTSUPP) {
				err = errors.Join(err, e)
			}
		}
	}
	return err
}

// removeRoutes removes the rules and routes from the network namespaces whose last program at a device was in these
// links.
func removeRoutes(bpffs string, removed []podLink) error {
	cookies := map[uint64]bool{}
	for _, l := range removed {
		if l.device != 0 {
			cookies[l.netns] = true
		}
	}
	if len(cookies) == 0 {
		return nil
	}
	left, err := podLinks(bpffs)
	if err != nil {
		return err
	}
	for _, l := range left {
		if l.device != 0 {
			delete(cookies, l.netns)
		}
	}
	for namespace, err := range netns.All() {
		if err != nil {
			continue // of a process that has ended, or that may not be looked at
		}
		cookie, err := namespace.Cookie()
		if err != nil || !cookies[cookie] {
			continue
		}
		if err := namespace.Do(deleteRoutes); err != nil {
			return fmt.Errorf("remove the rule and the route for virtual machines: %w", err)
		}
	}
	return nil
}
