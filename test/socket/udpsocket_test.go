// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/lab"
)

// A udpSocket is a datagram socket of a host; the test makes its system calls directly. Receiving waits at most
// patience.
type udpSocket struct {
	hostSocket
	questions int
}

// datagrams makes a udpSocket.
func (f family) datagrams(t *testing.T, host *lab.Host) *udpSocket {
	t.Helper()
	fd, err := host.Socket(f.domain, unix.SOCK_DGRAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	s := &udpSocket{hostSocket: hostSocket{t, f, fd}}
	t.Cleanup(s.close)
	s.timeout(patience)
	return s
}

func (s *udpSocket) timeout(d time.Duration) {
	s.t.Helper()
	limit := unix.NsecToTimeval(d.Nanoseconds())
	if err := unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
		s.t.Fatal(err)
	}
}

// question makes a payload unique to this socket.
func (s *udpSocket) question() string {
	s.questions++
	return fmt.Sprintf("question %d", s.questions)
}

// sendTo is one sendto(2), send is one send(2) on a connected socket.
func (s *udpSocket) sendTo(payload string, to netip.AddrPort) error {
	return unix.Sendto(s.fd, []byte(payload), 0, s.f.sockaddr(to))
}

func (s *udpSocket) send(payload string) error {
	_, err := unix.Write(s.fd, []byte(payload))
	return err
}

// receive is one recvfrom(2): the payload, and the source as the program sees it.
func (s *udpSocket) receive() (lab.Answer, netip.AddrPort, error) {
	s.t.Helper()
	var answer lab.Answer
	buffer := make([]byte, 4096)
	n, sa, err := unix.Recvfrom(s.fd, buffer, 0)
	for err == unix.EINTR { // with SO_RCVTIMEO the kernel does not restart the call, see signal(7)
		n, sa, err = unix.Recvfrom(s.fd, buffer, 0)
	}
	if err != nil {
		return answer, netip.AddrPort{}, err
	}
	if err := json.Unmarshal(buffer[:n], &answer); err != nil {
		s.t.Fatalf("a datagram that is not from a server: %q", buffer[:n])
	}
	if sa == nil {
		return answer, netip.AddrPort{}, nil
	}
	from, err := addrPort(sa, nil)
	return answer, from, err
}

// wantAnswer receives one datagram: the reply to a request, from an address.
func (s *udpSocket) wantAnswer(question string, from netip.AddrPort) lab.Answer {
	s.t.Helper()
	answer, got, err := s.receive()
	if err != nil {
		s.t.Fatalf("no answer to %q from %s: %v", question, from, err)
	}
	if answer.Payload != question || got != from {
		s.t.Errorf("%q came from %s (%s), want %q from %s", answer.Payload, got, answer.Pod, question, from)
	}
	return answer
}

// exchange sends to an address with sendto, and checks that the reply comes from there.
func (s *udpSocket) exchange(to netip.AddrPort) lab.Answer {
	s.t.Helper()
	q := s.question()
	if err := s.sendTo(q, to); err != nil {
		s.t.Fatalf("sendto %s: %v", to, err)
	}
	return s.wantAnswer(q, to)
}

// exchangeConnected is exchange with send, on a connected socket.
func (s *udpSocket) exchangeConnected(peer netip.AddrPort) lab.Answer {
	s.t.Helper()
	q := s.question()
	if err := s.send(q); err != nil {
		s.t.Fatalf("send to %s: %v", peer, err)
	}
	return s.wantAnswer(q, peer)
}

// mustConnect is connect(2).
func (s *udpSocket) mustConnect(to netip.AddrPort) {
	s.t.Helper()
	if err := s.connect(to); err != nil {
		s.t.Fatalf("connect to %s: %v", to, err)
	}
}

// meetUDP returns the result of datagrams to an address: sendto's errno, or the names of the pods that answer
// new sockets.
func meetUDP(t *testing.T, from *lab.Host, f family, to netip.AddrPort) string {
	t.Helper()
	seen := map[string]bool{}
	for range tries {
		s := f.datagrams(t, from)
		err := s.sendTo("who", to)
		if err != nil {
			s.close()
			return errnoName(err)
		}
		seen[s.wantAnswer("who", to).Pod] = true
		s.close()
	}
	return strings.Join(sortedKeys(seen), " ")
}

// wantMeetUDP checks the result of datagrams of each named host.
func (w *world) wantMeetUDP(t *testing.T, from string, f family, to netip.AddrPort, want string) {
	t.Helper()
	for _, host := range w.hosts(from) {
		if got := meetUDP(t, host, f, to); got != want {
			t.Errorf("%s sends to %s and gets %q, want %q", host.Name, to, got, want)
		}
	}
}

// udp is a Service of ClusterIPs n with the UDP port 80 instead of TCP, with the named pods as ready endpoints.
func (w *world) udp(name string, n uint8, pods string) (*corev1.Service, []*discoveryv1.EndpointSlice) {
	w.t.Helper()
	s, slices := w.web(name, n, pods)
	s.Spec.Ports[0].Protocol = corev1.ProtocolUDP
	port, protocol := int32(lab.PortUDP), corev1.ProtocolUDP
	for _, slice := range slices {
		slice.Ports[0].Protocol, slice.Ports[0].Port = &protocol, &port
	}
	return s, slices
}

func sortedKeys(m map[string]bool) []string { return slices.Sorted(maps.Keys(m)) }

// rawSockaddr is an address as system calls expect it.
func (f family) rawSockaddr(a netip.AddrPort) (memory []byte) {
	port := binary.BigEndian.AppendUint16(nil, a.Port())
	family := binary.NativeEndian.AppendUint16(nil, uint16(f.domain))
	if f.domain == unix.AF_INET {
		ip := a.Addr().As4()
		return slices.Concat(family, port, ip[:], make([]byte, 8))
	}
	ip := a.Addr().As16()
	return slices.Concat(family, port, make([]byte, 4), ip[:], make([]byte, 4))
}

// mmsghdr is struct mmsghdr of recvmmsg(2).
type mmsghdr struct {
	header unix.Msghdr
	length uint32
	_      [4]byte
}

// sendMany sends to each address in one sendmmsg(2).
func (s *udpSocket) sendMany(to []netip.AddrPort) error {
	messages := make([]mmsghdr, len(to))
	for i, a := range to {
		name, payload := s.f.rawSockaddr(a), []byte("who")
		iov := &unix.Iovec{Base: &payload[0]}
		iov.SetLen(len(payload))
		messages[i].header = unix.Msghdr{Name: &name[0], Namelen: uint32(len(name)), Iov: iov}
		messages[i].header.SetIovlen(1)
	}
	n, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&messages[0])), uintptr(len(messages)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	if int(n) != len(to) {
		return fmt.Errorf("%d of %d datagrams were sent", n, len(to))
	}
	return nil
}

// receiveMany receives n datagrams in one recvmmsg(2), and returns their sources.
func (s *udpSocket) receiveMany(n int) (from []netip.AddrPort) {
	s.t.Helper()
	messages, names := make([]mmsghdr, n), make([][unix.SizeofSockaddrInet6]byte, n)
	for i := range messages {
		buffer := make([]byte, 4096)
		iov := &unix.Iovec{Base: &buffer[0]}
		iov.SetLen(len(buffer))
		messages[i].header = unix.Msghdr{Name: &names[i][0], Namelen: unix.SizeofSockaddrInet6, Iov: iov}
		messages[i].header.SetIovlen(1)
	}
	got, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&messages[0])), uintptr(n), 0, 0, 0)
	if errno != 0 {
		s.t.Fatalf("recvmmsg: %v", errno)
	}
	for i := range got {
		name := names[i][:]
		port := binary.BigEndian.Uint16(name[2:])
		ip := netip.AddrFrom4([4]byte(name[4:]))
		if s.f.domain == unix.AF_INET6 {
			ip = netip.AddrFrom16([16]byte(name[8:])).Unmap()
		}
		from = append(from, netip.AddrPortFrom(ip, port))
	}
	return from
}

// sendFrom sends a datagram with a source address in IP_PKTINFO or IPV6_PKTINFO.
func (s *udpSocket) sendFrom(source netip.Addr, payload string, to netip.AddrPort) error {
	control := unix.PktInfo6(&unix.Inet6Pktinfo{Addr: source.As16()})
	if s.f.domain == unix.AF_INET {
		control = unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: source.As4()})
	}
	return unix.Sendmsg(s.fd, []byte(payload), control, s.f.sockaddr(to), 0)
}

// wantPacketInfo enables the control message with each datagram's destination.
func (s *udpSocket) wantPacketInfo() {
	s.t.Helper()
	level, option := unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO
	if s.f.domain == unix.AF_INET {
		level, option = unix.IPPROTO_IP, unix.IP_PKTINFO
	}
	if err := unix.SetsockoptInt(s.fd, level, option, 1); err != nil {
		s.t.Fatal(err)
	}
}

// receivePacketInfo receives a datagram, with its source and its destination, one of this host's addresses.
func (s *udpSocket) receivePacketInfo() (answer lab.Answer, from netip.AddrPort, to netip.Addr) {
	s.t.Helper()
	buffer, control := make([]byte, 4096), make([]byte, 256)
	n, size, _, sa, err := unix.Recvmsg(s.fd, buffer, control, 0)
	for err == unix.EINTR {
		n, size, _, sa, err = unix.Recvmsg(s.fd, buffer, control, 0)
	}
	if err == nil {
		err = json.Unmarshal(buffer[:n], &answer)
	}
	if err == nil {
		from, err = addrPort(sa, nil)
	}
	messages, parseErr := unix.ParseSocketControlMessage(control[:size])
	if err = errors.Join(err, parseErr); err != nil {
		s.t.Fatal(err)
	}
	for _, m := range messages {
		switch {
		case m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_PKTINFO:
			to = netip.AddrFrom4([4]byte(m.Data[8:12])) // ipi_addr
		case m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_PKTINFO:
			to = netip.AddrFrom16([16]byte(m.Data[:16])).Unmap()
		}
	}
	return answer, from, to
}
