// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/lab"
)

// forgedSources are addresses that nobody has: replies to them end at the fabric.
var forgedSources = [2]netip.Prefix{netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("2001:db8:f::/48")}

// A hostile kind of packets.
type hostile struct {
	name string
	make func(*flooder) []byte
	sent *atomic.Int64
}

var hostileKinds = []hostile{
	{"SYNs of forged sources", (*flooder).syn, new(atomic.Int64)},
	{"datagrams of forged sources", (*flooder).datagram, new(atomic.Int64)},
	{"segments in clients' names", (*flooder).segment, new(atomic.Int64)},
	{"ICMP", (*flooder).icmp, new(atomic.Int64)},
	{"fragments", (*flooder).fragment, new(atomic.Int64)},
	{"forged encapsulation", (*flooder).encapsulated, new(atomic.Int64)},
	{"damaged packets", (*flooder).damaged, new(atomic.Int64)},
}

// flooder sends hostile packets from the fabric to both of node-a's devices.
type flooder struct {
	*world
	*rand.Rand
	fds       [2]int
	spare     []byte // the other fragment of the last one
	anonymous bool   // packets have no tuple of a client's flow
}

func (w *world) newFlooder() *flooder {
	w.t.Helper()
	f := &flooder{world: w, Rand: rand.New(rand.NewPCG(w.random.Uint64(), 1))}
	for i := range f.fds {
		fd, err := w.Host("fabric").Socket(unix.AF_PACKET, unix.SOCK_RAW, 0) // protocol 0: it receives nothing
		w.must(err)
		w.t.Cleanup(func() { unix.Close(fd) })
		f.fds[i] = fd
	}
	return f
}

// run sends packets of a kind for some time.
func (f *flooder) run(kind hostile, lasting time.Duration) error {
	const turn, most = 2 * time.Millisecond, 32
	var headers [2][]byte
	for i, names := range [2][2]string{{"node-a", "eth0"}, {"node-a-2", "eth1"}} {
		far, index, err := macOf(f.Host("fabric"), names[0])
		if err != nil {
			return err
		}
		near, _, err := macOf(f.Host("node-a"), names[1])
		if err != nil {
			return err
		}
		headers[i] = append(near, far...)
		if err := unix.Bind(f.fds[i], &unix.SockaddrLinklayer{Ifindex: index}); err != nil {
			return os.NewSyscallError("bind", err)
		}
	}
	begin, sent, skipped := time.Now(), 0, 0
	for time.Since(begin) < lasting {
		due := int(time.Since(begin).Seconds()*float64(*rateFlag)) - skipped
		if late := due - sent - most; late > 0 { // no burst after a stall of this machine
			skipped, due = skipped+late, due-late
		}
		for ; sent < due; sent++ {
			packet := kind.make(f)
			ether := []byte{0x08, 0x00}
			if packet[0]>>4 == 6 {
				ether = []byte{0x86, 0xdd}
			}
			device := sent % 2
			frame := append(append(append([]byte(nil), headers[device]...), ether...), packet...)
			_, err := unix.Write(f.fds[device], frame)
			switch {
			case errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.ENETDOWN), errors.Is(err, unix.ENXIO): // the device is gone, or its queue is full
			case err != nil:
				return os.NewSyscallError("write", err)
			default:
				kind.sent.Add(1)
			}
		}
		time.Sleep(turn)
	}
	return nil
}

func macOf(host *lab.Host, device string) (mac []byte, index int, err error) {
	err = host.Do(func() error {
		link, err := netlink.LinkByName(device)
		if err != nil {
			return fmt.Errorf("device %s: %w", device, err)
		}
		mac, index = append([]byte(nil), link.Attrs().HardwareAddr...), link.Attrs().Index
		return nil
	})
	return mac, index, err
}

// target is a Service's address for external clients.
func (f *flooder) target() netip.AddrPort {
	return f.address([]string{"client", "client2"}[f.IntN(2)], steady+f.IntN(3), f.IntN(2))
}

// source is a forged one.
func (f *flooder) source(to netip.Addr) netip.AddrPort {
	network := forgedSources[1]
	if to.Is4() {
		network = forgedSources[0]
	}
	b := network.Addr().AsSlice()
	for i := range 4 {
		if at := len(b) - 1 - i; 8*(at+1) > network.Bits()+7 {
			b[at] = byte(f.Uint32())
		}
	}
	a, _ := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(a, uint16(1024+f.IntN(64000)))
}

func (f *flooder) ends() ends {
	to := f.target()
	return ends{f.source(to.Addr()), to}
}

// known are the ends of an external client's long flow, or forged ones.
func (f *flooder) known() ends {
	for range 20 {
		c := f.clients[f.IntN(len(f.clients))]
		if from, ok := c.flow(); ok && !f.anonymous && (c.host == "client" || c.host == "client2") {
			return ends{from, c.to}
		}
	}
	return f.ends()
}

func (f *flooder) syn() []byte { return tcpPacket(f.ends(), syn, f.Uint32(), 0) }

func (f *flooder) datagram() []byte { return udpPacket(f.ends(), []byte("forged")) }

// segment has any flags but those of a SYN (docs/operate/life.md#forged-syns), and its numbers are random.
func (f *flooder) segment() []byte {
	flags := []byte{rst, rst | ack, fin, fin | ack, ack, psh | ack, syn | ack, syn | rst, 0, 0xff}
	return tcpPacket(f.known(), flags[f.IntN(len(flags))], f.Uint32(), f.Uint32())
}

// icmp is an echo request, or an error about a packet that nobody has sent.
func (f *flooder) icmp() []byte {
	e := f.ends()
	v6 := e.to.Addr().Is6()
	if f.IntN(2) == 0 {
		return icmpPacket(e.from.Addr(), e.to.Addr(), map[bool]byte{false: 8, true: 128}[v6], 0, f.Uint32(), []byte("forged"))
	}
	quoted := tcpPacket(ends{e.to, e.from}, ack, f.Uint32(), f.Uint32())
	if f.IntN(2) == 0 {
		quoted = udpPacket(ends{e.to, e.from}, []byte("forged"))
	}
	quoted = quoted[:len(quoted)-f.IntN(12)]
	if v6 {
		return icmpPacket(e.from.Addr(), e.to.Addr(), byte(1+f.IntN(4)), byte(f.IntN(5)), uint32(f.IntN(1500)), quoted)
	}
	return icmpPacket(e.from.Addr(), e.to.Addr(), []byte{3, 11, 12}[f.IntN(3)], byte(f.IntN(5)), uint32(f.IntN(1500)), quoted)
}

// fragment is one part of a datagram: either part may be missing, come late, or come twice.
func (f *flooder) fragment() []byte {
	if f.spare != nil && f.IntN(2) == 0 {
		late := f.spare
		f.spare = nil
		return late
	}
	parts := fragments(udpPacket(f.ends(), make([]byte, 64)), 8*(1+f.IntN(7)), f.Uint32()&0xffff)
	first := f.IntN(2)
	f.spare = parts[1-first]
	return parts[first]
}

// encapsulated is a packet in one more header, from a source that is no balancer.
func (f *flooder) encapsulated() []byte {
	inner := tcpPacket(f.known(), syn, f.Uint32(), 0)
	if f.IntN(2) == 0 {
		inner = udpPacket(f.known(), []byte("forged"))
	}
	outer := f.ends()
	protocol := byte(unix.IPPROTO_IPIP)
	if inner[0]>>4 == 6 {
		protocol = unix.IPPROTO_IPV6
	}
	if f.IntN(2) == 0 {
		return ipPacket(outer.from.Addr(), outer.to.Addr(), protocol, inner)
	}
	const geneve = 6081 // RFC 8926: version and length of options, flags, protocol type, VNI
	header := []byte{0, 0, 0x08, 0x00, 0, 0, 0, 0}
	if protocol == unix.IPPROTO_IPV6 {
		header[2], header[3] = 0x86, 0xdd
	}
	return udpPacket(ends{outer.from, netip.AddrPortFrom(outer.to.Addr(), geneve)}, append(header, inner...))
}

// damaged is a packet of any kind with some wrong octets, or cut short. Any octet may be that of the flags, and make
// it a SYN.
func (f *flooder) damaged() []byte {
	f.anonymous = true
	defer func() { f.anonymous = false }()
	makers := []func(*flooder) []byte{(*flooder).syn, (*flooder).datagram, (*flooder).segment, (*flooder).icmp, (*flooder).fragment, (*flooder).encapsulated}
	packet := makers[f.IntN(len(makers))](f)
	for range 1 + f.IntN(8) {
		packet[1+f.IntN(len(packet)-1)] = byte(f.Uint32())
	}
	if f.IntN(4) == 0 {
		packet = packet[:20+f.IntN(len(packet)-20)]
	}
	return packet
}
