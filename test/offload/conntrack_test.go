// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// States of a connection in the kernel's conntrack (enum tcp_conntrack).
const (
	stateEstablished = 3
	stateClose       = 8
)

// entries are the flow's in the kernel's conntrack of the router.
func (f *flow) entries() []*netlink.ConntrackFlow {
	f.w.t.Helper()
	var own []*netlink.ConntrackFlow
	f.w.must(f.w.host("router").Do(func() error {
		all, err := netlink.ConntrackTableList(netlink.ConntrackTable, netlink.InetFamily([]int{unix.AF_INET, unix.AF_INET6}[f.family]))
		for _, e := range all {
			if e.Reverse.SrcPort == f.port {
				own = append(own, e)
			}
		}
		return err
	}))
	return own
}

// state is that of the flow's entry; 0 without one.
func (f *flow) state() uint8 {
	f.w.t.Helper()
	for _, e := range f.entries() {
		if tcp, ok := e.ProtoInfo.(*netlink.ProtoInfoTCP); ok {
			return tcp.State
		}
	}
	return 0
}

// forget deletes the flow's entries.
func (f *flow) forget() {
	f.w.t.Helper()
	f.w.must(f.w.host("router").Do(func() error {
		_, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, netlink.InetFamily([]int{unix.AF_INET, unix.AF_INET6}[f.family]), ofPort(f.port))
		return err
	}))
}

// ofPort matches entries of a server's port.
type ofPort uint16

func (p ofPort) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	return f.Reverse.SrcPort == uint16(p)
}
