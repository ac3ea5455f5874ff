// SPDX-License-Identifier: Apache-2.0

package twin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node/netdev"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// A side is one of the two labs.
type side struct {
	*lab.Lab
	name   string
	layout *layout
	agent  *node.Agent // nil: the stack alone
	macs   map[string]net.HardwareAddr
	names  map[string]string // of devices by their MAC address
	ports  map[string]sender
	taps   []*tap
	snat   snat

	addresses [2]netip.Addr // of the node, one of each family
}

// sender is a packet socket of a device.
type sender struct{ fd, index int }

// sides are the names, in the order of world.sides.
var sides = [2]string{"shortcut", "stack"}

// quiet keeps pods and clients from answering: all packets come from the test. Neighbours are found nevertheless.
const quiet = `table netdev quiet {
	chain eth0 {
		type filter hook ingress device eth0 priority 0; policy accept;
		icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept
		meta protocol { ip, ip6, vlan } drop
	}
}`

// patience bounds what is not under test.
const patience = time.Minute

// prepare has the hosts answer nothing, and every ICMP error of the stack leave: its limits count all packets of a
// second.
func (s *side) prepare() error {
	for _, h := range s.Hosts() {
		if h.Role == lab.RolePod || h.Role == lab.RoleClient {
			if err := s.run(h.Name, "nft", quiet); err != nil {
				return err
			}
		}
	}
	if s.layout.rules != nil {
		if rules := s.layout.rules(s); rules != "" {
			if err := s.run(nodeA, "nft", rules); err != nil {
				return err
			}
		}
	}
	if s.layout.xdp {
		if err := s.readyForXDP(); err != nil {
			return err
		}
	}
	if err := s.shell("fabric", s.layout.fabric); err != nil {
		return err
	}
	if s.agent == nil {
		if err := s.shell(nodeA, s.layout.stack); err != nil {
			return err
		}
	}
	if err := s.keepNeighbours(); err != nil {
		return err
	}
	return s.sysctl(nodeA, "ipv4/icmp_msgs_per_sec=1000000", "ipv4/icmp_msgs_burst=1000000", "ipv4/icmp_ratemask=0", "ipv6/icmp/ratelimit=0")
}

// keepNeighbours has the node take neighbours for reachable until a change of the test.
func (s *side) keepNeighbours() error {
	return s.run(nodeA, "sh", "-ec", "for f in /proc/sys/net/ipv[46]/neigh/*/base_reachable_time_ms; do echo 3600000 > $f; done")
}

// open opens the sockets that send and receive.
func (s *side) open() error {
	if err := s.readMACs(); err != nil {
		return err
	}
	s.ports = map[string]sender{}
	for name, p := range s.layout.points {
		fd, index, err := s.packetSocket(p.host, p.device, 0)
		if err != nil {
			return err
		}
		s.ports[name] = sender{fd, index}
	}
	for _, e := range s.layout.ends {
		t, err := s.tap(e)
		if err != nil {
			return err
		}
		s.taps = append(s.taps, t)
	}
	return nil
}

func (s *side) close() {
	for _, p := range s.ports {
		unix.Close(p.fd)
	}
	for _, t := range s.taps {
		unix.Close(t.fd)
	}
}

// readMACs finds the MAC addresses of all devices. Of several devices with one address, as a bridge and its first
// port, the name of the one that is no port is used.
func (s *side) readMACs() error {
	s.macs, s.names = map[string]net.HardwareAddr{}, map[string]string{}
	for _, h := range s.Hosts() {
		nl, err := h.Netlink()
		if err != nil {
			return err
		}
		links, err := netdev.Dump(nl.LinkList)
		nl.Close()
		if err != nil {
			return err
		}
		for _, link := range links {
			a := link.Attrs()
			if len(a.HardwareAddr) != 6 || a.Name == "lo" {
				continue
			}
			name, mac := h.Name+"/"+a.Name, string(a.HardwareAddr)
			s.macs[name] = a.HardwareAddr
			if s.names[mac] == "" || a.MasterIndex == 0 {
				s.names[mac] = name
			}
		}
	}
	return nil
}

// packetSocket is a raw packet socket with virtio headers, at a device.
func (s *side) packetSocket(host, device string, protocol uint16) (fd, index int, err error) {
	nl, link, err := s.Host(host).OpenDevice(device)
	if err != nil {
		return -1, 0, err
	}
	nl.Close()
	index = link.Attrs().Index
	fd, err = s.Host(host).Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, 0, err
	}
	err = errors.Join(
		os.NewSyscallError("PACKET_VNET_HDR", unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1)),
		os.NewSyscallError("PACKET_AUXDATA", unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1)),
		os.NewSyscallError("SO_SNDBUFFORCE", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 8<<20)),
		os.NewSyscallError("SO_RCVBUFFORCE", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 32<<20)),
		os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: index})))
	if err != nil {
		unix.Close(fd)
	}
	return fd, index, err
}

// send sends a frame, or its fragments. A device that is down, or whose peer drops the frame, sends nothing; nor can a
// frame of several kinds whose virtio header the kernel refuses.
func (s *side) send(f Frame, number uint32) error {
	s.endFlow(f)
	for _, part := range s.translate(f).parts() {
		if err := s.sendPart(part, number); err != nil {
			return fmt.Errorf("%s: %w", f, err)
		}
	}
	return nil
}

func (s *side) sendPart(f Frame, number uint32) error {
	p := s.layout.points[f.At]
	to := f.FrameTo
	if to == "" {
		to = s.layout.nextHop(p, s.Lab, f.To)
	}
	frame, err := f.encode(s.macs[p.host+"/"+p.device], s.macs[to], number)
	if err != nil {
		return err
	}
	port := s.ports[f.At]
	err = unix.Sendto(port.fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: port.index})
	for _, unsent := range []unix.Errno{unix.ENETDOWN, unix.EMSGSIZE, unix.ENOBUFS, unix.EINVAL, unix.ENOMEM} {
		if errors.Is(err, unsent) {
			return nil
		}
	}
	return os.NewSyscallError("sendto", err)
}

// run runs a command on a host.
func (s *side) run(host string, argv ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if out, err := s.Host(host).Command(ctx, argv...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %s: %s: %w: %s", s.name, host, strings.Join(argv, " "), err, out)
	}
	return nil
}

// shell runs lines of commands on a host, with the names of replacer.
func (s *side) shell(host string, lines []string) error {
	return s.run(host, "sh", "-ec", s.replacer().Replace(strings.Join(lines, "\n")))
}

// readyForXDP has devices transmit as they do with XDP at their peers. The node without a shortcut has a program that
// passes all.
func (s *side) readyForXDP() error {
	if err := s.ReadyForXDP(); err != nil || s.agent != nil {
		return err
	}
	return s.Host(nodeA).PassByXDP("eth0")
}

// sysctl writes settings below net.
func (s *side) sysctl(host string, settings ...string) error {
	return s.Host(host).Do(func() error {
		for _, setting := range settings {
			path, value, _ := strings.Cut(setting, "=")
			err := os.WriteFile("/proc/sys/net/"+path, []byte(value), 0o644)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
		return nil
	})
}

// meet has hosts send a datagram to addresses, so that they know their next hops and bridges the ports of their
// pods.
func (s *side) meet(host string, to ...netip.Addr) error {
	return s.Host(host).Do(func() error {
		for _, addr := range to {
			family, sockaddr := unix.AF_INET, unix.Sockaddr(nil)
			if addr.Is6() {
				family, sockaddr = unix.AF_INET6, &unix.SockaddrInet6{Port: 9, Addr: addr.As16()}
			} else {
				sockaddr = &unix.SockaddrInet4{Port: 9, Addr: addr.As4()}
			}
			fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			_ = unix.Sendto(fd, []byte("hello"), 0, sockaddr) // a rule of the walk may forbid it
			unix.Close(fd)
		}
		return nil
	})
}

// pinned runs f on a thread that stays on one CPU: decisions are remembered for each CPU. It returns false if f has
// left by t.FailNow, which ends its goroutine alone.
func pinned(cpu int, f func()) (finished bool) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the thread ends with the goroutine
		var set unix.CPUSet
		set.Set(cpu)
		_ = unix.SchedSetaffinity(0, &set)
		f()
		finished = true
	}()
	<-done
	return finished
}
