// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"errors"
	"net"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// smallerMTUs gives the device and the route to the server a smaller MTU, each less than the client has learned.
func (w *world) smallerMTUs(all []*flow) {
	all = w.of(all, func(f *flow) bool { return f.kind == dnat })
	w.t.Run("device", func(t *testing.T) {
		w := w.in(t)
		w.ip("router", "link set s0 mtu 1400")
		defer w.ip("router", "link set s0 mtu 1500")
		w.learnMTU(all, 1400)
	})
	w.t.Run("route", func(t *testing.T) {
		w := w.in(t)
		w.routeTargets(networkServer, "mtu 1300")
		defer w.routeTargets(networkServer)
		w.learnMTU(all, 1300)
	})
}

// learnMTU checks that the client learns the MTU from ICMP errors.
func (w *world) learnMTU(all []*flow, mtu int) {
	w.t.Helper()
	for _, f := range w.of(all, nil) {
		if f.network == "udp" {
			w.must(unfragmented(f.near))
			w.within(soon*load, f.String()+": a datagram is too long", func() bool {
				return errors.Is(f.request(mtu-20, soon/4), unix.EMSGSIZE)
			})
			w.must(f.request(mtu-48, patience/6))
			continue
		}
		w.within(soon*load, f.String()+": segments fit", func() bool {
			w.must(f.transfer(20))
			return mss(w, f) <= uint32(mtu-40)
		})
	}
	w.settle(w.of(all, nil)...)
}

// unfragmented sets the flag DF of IPv4, and has no packet of IPv6 fragmented.
func unfragmented(conn net.Conn) error {
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return err
	}
	level, option := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER
	if strings.Contains(conn.RemoteAddr().String(), "[") {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER
	}
	return errors.Join(raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, unix.IP_PMTUDISC_DO) }), err)
}

// mss is the greatest payload of a segment that the client sends.
func mss(w *world, f *flow) uint32 {
	w.t.Helper()
	raw, err := f.near.(syscall.Conn).SyscallConn()
	w.must(err)
	var info *unix.TCPInfo
	w.must(raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }))
	w.must(err)
	return info.Snd_mss
}
