// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/lab"
)

// FloodConfig configures packets with random source addresses and ports, SYNs and UDP datagrams to each target
// in turn.
type FloodConfig struct {
	Device   string           `json:"device"` // of the host, that sends them
	Index    int              `json:"index"`
	From, To [6]byte          // MAC addresses
	Targets  []netip.AddrPort `json:"targets"`
	Sources  netip.Prefix     `json:"sources"`  // IPv4
	Answered bool             `json:"answered"` // whether the server answers the datagrams
	Rate     int              `json:"rate"`     // packets per second; 0: as fast as possible
	CPU      int              `json:"cpu"`
}

// FloodResult is what was sent.
type FloodResult struct {
	Packets uint64        `json:"packets"`
	Took    time.Duration `json:"took"`
}

// Flood is a process that floods until it is finished.
type Flood struct{ *talker }

// StartFlood starts a flood from a host.
func StartFlood(ctx context.Context, host *lab.Host, config FloodConfig) (*Flood, error) {
	t, err := startTalker(ctx, host, partFlood, config)
	return &Flood{t}, err
}

// Finish ends the flood.
func (f *Flood) Finish() (r FloodResult, err error) {
	err = f.finish(&r)
	return r, err
}

const (
	floodBatch     = 64
	ethernetHeader = 14
	ipHeader       = 20
	floodPayload   = 18 // of a datagram: the shortest frame of Ethernet
	floodFrame     = ethernetHeader + ipHeader + 8 + floodPayload
	synLength      = ipHeader + 20
)

// mmsghdr is that of sendmmsg(2).
type mmsghdr struct {
	header unix.Msghdr
	sent   uint32
	_      uint32
}

// flood is the process.
type flood struct {
	FloodConfig
	fd       int
	frames   [floodBatch][floodFrame]byte
	vectors  [floodBatch]unix.Iovec
	messages [floodBatch]mmsghdr
	random   uint64
	base     uint32 // of the source addresses
	mask     uint32
}

func runFlood(config FloodConfig) error {
	f := &flood{FloodConfig: config, random: 0x9e3779b97f4a7c15 ^ uint64(time.Now().UnixNano())}
	if err := f.open(); err != nil {
		return err
	}
	f.prepare()
	fmt.Println()
	var result FloodResult
	start := time.Now()
	for batch := 0; ; batch++ {
		if batch%16 == 0 {
			if done, err := told(); done || err != nil {
				if err != nil {
					return err
				}
				break
			}
		}
		if f.Rate > 0 && float64(result.Packets) > time.Since(start).Seconds()*float64(f.Rate) {
			unix.Nanosleep(&unix.Timespec{Nsec: 200_000}, nil)
			continue
		}
		n, err := f.send()
		if err != nil {
			return err
		}
		result.Packets += uint64(n)
	}
	result.Took = time.Since(start)
	return printJSON(result)
}

// told reports whether standard input has a line, or its end. The newline of the configuration may still be
// there.
func told() (bool, error) {
	fds := []unix.PollFd{{Fd: int32(unix.Stdin), Events: unix.POLLIN}}
	switch n, err := unix.Poll(fds, 0); {
	case err == unix.EINTR || err == nil && n == 0:
		return false, nil
	case err != nil:
		return false, os.NewSyscallError("poll", err)
	}
	var b [1]byte
	n, err := unix.Read(unix.Stdin, b[:])
	return n != 1 || b[0] != '\n', err
}

func (f *flood) open() (err error) {
	// Protocol 0: the socket receives nothing.
	if f.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
		return os.NewSyscallError("socket", err)
	}
	if err := unix.Bind(f.fd, &unix.SockaddrLinklayer{Ifindex: f.Index}); err != nil {
		return fmt.Errorf("bind to %s: %w", f.Device, err)
	}
	if err := unix.SetsockoptInt(f.fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	return nil
}

// prepare writes the constant part of the frames.
func (f *flood) prepare() {
	base := f.Sources.Masked().Addr().As4()
	f.base, f.mask = binary.BigEndian.Uint32(base[:]), 1<<(32-f.Sources.Bits())-1
	for i := range f.frames {
		frame := f.frames[i][:]
		copy(frame, f.To[:])
		copy(frame[6:], f.From[:])
		binary.BigEndian.PutUint16(frame[12:], unix.ETH_P_IP)
		// Each target gets a SYN and a datagram in turn.
		target := f.Targets[i/2%len(f.Targets)]
		ip, l4 := frame[ethernetHeader:], frame[ethernetHeader+ipHeader:]
		length, protocol := floodFrame-ethernetHeader, unix.IPPROTO_UDP
		if i%2 == 0 {
			length, protocol = synLength, unix.IPPROTO_TCP
		}
		ip[0], ip[6], ip[8], ip[9] = 0x45, 0x40, 64, byte(protocol)
		binary.BigEndian.PutUint16(ip[2:], uint16(length))
		to := target.Addr().As4()
		copy(ip[16:], to[:])
		binary.BigEndian.PutUint16(l4[2:], target.Port())
		if protocol == unix.IPPROTO_TCP {
			l4[12], l4[13] = 5<<4, 0x02 // SYN
			binary.BigEndian.PutUint16(l4[14:], 64240)
		} else {
			binary.BigEndian.PutUint16(l4[4:], 8+floodPayload)
			l4[8] = floodSilent
			if f.Answered {
				l4[8] = floodAnswered
			}
		}
		f.vectors[i] = unix.Iovec{Base: &frame[0]}
		f.vectors[i].SetLen(ethernetHeader + length)
		f.messages[i].header.Iov = &f.vectors[i]
		f.messages[i].header.SetIovlen(1)
	}
}

// randomize gives a frame another source, and updates its checksums.
func (f *flood) randomize(frame []byte) {
	// xorshift (Marsaglia 2003).
	f.random ^= f.random << 13
	f.random ^= f.random >> 7
	f.random ^= f.random << 17
	r := f.random
	ip, l4 := frame[ethernetHeader:], frame[ethernetHeader+ipHeader:]
	binary.BigEndian.PutUint32(ip[12:], f.base|uint32(r)&f.mask)
	binary.BigEndian.PutUint16(l4, 1024+uint16(r>>32)%64512)
	ip[10], ip[11] = 0, 0
	binary.BigEndian.PutUint16(ip[10:], ^onesComplement(0, ip[:ipHeader]))
	l4 = l4[:int(binary.BigEndian.Uint16(ip[2:]))-ipHeader]
	check := l4[6:]
	if ip[9] == unix.IPPROTO_TCP {
		binary.BigEndian.PutUint32(l4[4:], uint32(r>>16))
		check = l4[16:]
	}
	check[0], check[1] = 0, 0
	sum := ^onesComplement(onesComplementPart(uint32(ip[9])+uint32(len(l4)), ip[12:20]), l4)
	if sum == 0 && ip[9] == unix.IPPROTO_UDP {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(check, sum)
}

func onesComplementPart(sum uint32, b []byte) uint32 {
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(b[0])<<8 | uint32(b[1])
	}
	return sum
}

// onesComplement is the checksum of RFC 1071 over an even number of bytes.
func onesComplement(sum uint32, b []byte) uint16 {
	sum = onesComplementPart(sum, b)
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}

// send sends the next packets, and returns how many the device has accepted.
func (f *flood) send() (int, error) {
	for i := range f.frames {
		f.randomize(f.frames[i][:])
	}
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(f.fd), uintptr(unsafe.Pointer(&f.messages[0])), floodBatch, 0, 0, 0)
	switch errno {
	case 0:
		return int(n), nil
	case unix.ENOBUFS, unix.EAGAIN, unix.EINTR: // the receiver's queue is full: that packet is lost
		return 0, nil
	}
	return 0, os.NewSyscallError("sendmmsg", errno)
}
