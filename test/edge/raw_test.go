// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/lab"
)

// rawSocket sends and receives packets of a protocol that the kernel does not handle, or besides the kernel.
type rawSocket struct {
	*world
	fd   int
	own  netip.Addr
	host string
}

// raw opens one, bound to a host's address of a family (0: IPv4, 1: IPv6).
func (w *world) raw(host *lab.Host, family, protocol int) *rawSocket {
	w.t.Helper()
	r := &rawSocket{world: w, own: addresses(host, 0)[family].Addr(), host: host.Name}
	var err error
	r.fd, err = host.Socket([]int{unix.AF_INET, unix.AF_INET6}[family], unix.SOCK_RAW, protocol)
	w.must(err)
	w.t.Cleanup(func() { unix.Close(r.fd) })
	w.must(os.NewSyscallError("bind", unix.Bind(r.fd, rawAddress(r.own))))
	return r
}

func rawAddress(a netip.Addr) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Addr: a.As4()}
	}
	return &unix.SockaddrInet6{Addr: a.As16()}
}

// send ignores ENOBUFS, the error for packets dropped at the node's own device: the test decides about these.
func (r *rawSocket) send(to netip.Addr, packet []byte) {
	r.t.Helper()
	if err := unix.Sendto(r.fd, packet, 0, rawAddress(to)); err != unix.ENOBUFS {
		r.must(os.NewSyscallError("sendto", err))
	}
}

// receive returns what has arrived already, layer 4 and its source; nil if nothing has.
func (r *rawSocket) receive() ([]byte, netip.Addr, error) {
	r.t.Helper()
	b := make([]byte, 4096)
	n, from, err := unix.Recvfrom(r.fd, b, unix.MSG_DONTWAIT)
	if err == unix.EAGAIN {
		return nil, netip.Addr{}, nil
	}
	if err != nil {
		return nil, netip.Addr{}, err
	}
	switch from := from.(type) {
	case *unix.SockaddrInet4:
		return b[int(b[0]&15)*4 : n], netip.AddrFrom4(from.Addr), nil
	case *unix.SockaddrInet6:
		return b[:n], netip.AddrFrom16(from.Addr), nil
	}
	return nil, netip.Addr{}, unix.EAFNOSUPPORT
}

// first waits for the first packet wanted at any of some sockets.
func first(t *testing.T, wanted func(packet []byte) bool, sockets ...*rawSocket) (by *rawSocket, packet []byte, from netip.Addr) {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		for _, r := range sockets {
			if packet, from, err := r.receive(); err != nil {
				t.Fatalf("%s: %v", r.host, err)
			} else if packet != nil && wanted(packet) {
				return r, packet, from
			}
		}
	}
	t.Fatalf("nothing arrived in %v; the edge counted %v", patience, sockets[0].edgeCounters())
	return nil, nil, netip.Addr{}
}

// Chunks of SCTP (RFC 9260 section 3.2).
const (
	sctpInit, sctpInitAck, sctpCookieEcho = 1, 2, 10
	sctpAbort                             = 6
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sctpPacket has one chunk.
func sctpPacket(from, to uint16, chunk byte, contents string) []byte {
	b := binary.BigEndian.AppendUint16(nil, from)
	b = binary.BigEndian.AppendUint16(b, to)
	b = append(b, 0, 0, 0, 1, 0, 0, 0, 0, chunk, 0, 0, byte(4+len(contents)))
	b = append(b, contents...)
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, castagnoli))
	return b
}

// sctpIs reports whether a packet has these ports, a chunk, and a correct checksum.
func sctpIs(from, to uint16, chunk byte) func([]byte) bool {
	return func(b []byte) bool {
		if len(b) < 16 || binary.BigEndian.Uint16(b) != from || binary.BigEndian.Uint16(b[2:]) != to || b[12] != chunk {
			return false
		}
		sum := binary.LittleEndian.Uint32(b[8:])
		b = append(append(append([]byte(nil), b[:8]...), 0, 0, 0, 0), b[12:]...)
		return crc32.Checksum(b, castagnoli) == sum
	}
}
