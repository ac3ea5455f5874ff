// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/lab"
)

// ask makes one connection, or sends one datagram, to an address of the scenario on a side. What exceeds
// patience is silence.
func (s *Side) ask(ctx context.Context, scenario *Scenario, p Probe, patience time.Duration) (Observation, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	client := s.Lab.Host(p.From)
	to := scenario.address(p, s.Lab)
	answer, err := exchange(ctx, client, p, to)
	if err == nil && s.Lab.Host(answer.Pod) == nil {
		err = errNonsense
	}
	if err == nil {
		return Observation{answered, s.backendName(answer), s.sourceName(client, p, answer.Peer.Addr(), to.Addr())}, nil
	}
	result, err := resultOf(err)
	return Observation{Result: result}, err
}

// sourceName is the owner of the source address that a backend saw. The client's own is the one that it is
// bound to.
func (s *Side) sourceName(client *lab.Host, p Probe, addr, asked netip.Addr) string {
	at := s.Lab.Host(judged)
	switch {
	case addr == boundTo(client, p):
		return "own"
	case addr == addressOf(at, p.Family):
		return "node"
	case addr == asked:
		return "service"
	case addr == secondOf(client, p.Family):
		return "second"
	}
	return addr.String()
}

// boundTo is the address that a client binds.
func boundTo(client *lab.Host, p Probe) netip.Addr {
	if p.Socket == "second" {
		return secondOf(client, p.Family)
	}
	return addressOf(client, p.Family)
}

// backendName is the host that answered, with its address if it is not the host's own address and usual port.
func (s *Side) backendName(answer lab.Answer) string {
	name, host := answer.Pod, s.Lab.Host(answer.Pod)
	if addr := answer.Local.Addr(); addr != host.Addr4 && addr != host.Addr6 {
		name += " at " + addr.String()
	}
	if port := answer.Local.Port(); port != lab.PortTCP {
		name += fmt.Sprintf(" port %d", port)
	}
	return name
}

var (
	errMisnamed = errors.New("the reply has another source")
	errNonsense = errors.New("not a server's answer")
)

// exchange sends one request.
func exchange(ctx context.Context, client *lab.Host, p Probe, to netip.AddrPort) (lab.Answer, error) {
	if p.Socket == "unconnected" {
		return exchangeUnconnected(ctx, client, to)
	}
	options := lab.DialOptions{V4Mapped: p.Socket == "mapped"}
	if p.Protocol == "udp" {
		options.Control = func(fd int) error { return hearUnreachable(fd, to.Addr(), options.V4Mapped) }
	}
	switch p.Socket {
	case "bound", "second":
		options.Local = netip.AddrPortFrom(boundTo(client, p), 0)
	case "device":
		before := options.Control
		options.Control = func(fd int) error {
			if before != nil {
				if err := before(fd); err != nil {
					return err
				}
			}
			return os.NewSyscallError("setsockopt", unix.BindToDevice(fd, "eth0"))
		}
	}
	conn, err := client.DialWith(ctx, options, p.Protocol, to.String())
	if err != nil {
		return lab.Answer{}, err
	}
	defer conn.Close()
	answer, err := question(ctx, conn)
	if udp, ok := conn.(*net.UDPConn); ok {
		err = orICMP(udp, err)
	}
	if err == nil && conn.RemoteAddr().String() != to.String() {
		return answer, errMisnamed
	}
	return answer, err
}

// question sends a request on an open connection. Over TCP it is one that both the line server and the HTTP
// server understand.
func question(ctx context.Context, conn net.Conn) (answer lab.Answer, err error) {
	if _, ok := conn.(*net.UDPConn); ok {
		return lab.Ask(ctx, conn, "hello")
	}
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return answer, err
	}
	if _, err := io.WriteString(conn, "GET /hello HTTP/1.0\r\n\r\n"); err != nil {
		return answer, err
	}
	reader := bufio.NewReader(conn)
	line, err := reader.ReadString('\n')
	for err == nil && !strings.HasPrefix(line, "{") {
		line, err = reader.ReadString('\n')
	}
	if err != nil {
		return answer, err
	}
	if err := json.Unmarshal([]byte(line), &answer); err != nil {
		return answer, fmt.Errorf("answer %q from %s: %w", line, conn.RemoteAddr(), err)
	}
	return answer, nil
}

// exchangeUnconnected uses sendto and recvfrom.
func exchangeUnconnected(ctx context.Context, client *lab.Host, to netip.AddrPort) (lab.Answer, error) {
	var answer lab.Answer
	network, any := "udp4", "0.0.0.0:0"
	if to.Addr().Is6() {
		network, any = "udp6", "[::]:0"
	}
	conn, err := client.ListenPacket(network, any)
	if err != nil {
		return answer, err
	}
	defer conn.Close()
	udp := conn.(*net.UDPConn)
	err = control(udp, func(fd int) error { return hearUnreachable(fd, to.Addr(), false) })
	if err != nil {
		return answer, err
	}
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return answer, err
	}
	if _, err := conn.WriteTo([]byte("hello"), net.UDPAddrFromAddrPort(to)); err != nil {
		return answer, orICMP(udp, err)
	}
	buffer := make([]byte, 65536)
	n, from, err := conn.ReadFrom(buffer)
	if err != nil {
		return answer, err
	}
	if err := json.Unmarshal(buffer[:n], &answer); err != nil {
		return answer, fmt.Errorf("answer %q from %v: %w", buffer[:n], from, err)
	}
	if from.String() != to.String() {
		return answer, errMisnamed
	}
	return answer, nil
}

// hearUnreachable enables all ICMP errors on a UDP socket: by default an unconnected one gets none, a connected
// one only refusals.
func hearUnreachable(fd int, to netip.Addr, mapped bool) error {
	if to.Is6() || mapped {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	if to.Is6() {
		return nil
	}
	return os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_RECVERR, 1))
}

// orICMP returns the ICMP error that a socket has received, if a netfilter rule has not only dropped its
// datagram, which the node's own sockets see as EPERM, but also rejected it.
func orICMP(conn *net.UDPConn, err error) error {
	if !errors.Is(err, syscall.EPERM) {
		return err
	}
	var pending int
	asking := control(conn, func(fd int) (err error) {
		pending, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
		return err
	})
	if asking != nil || pending == 0 {
		return errors.Join(err, asking)
	}
	return syscall.Errno(pending)
}

func control(conn *net.UDPConn, f func(fd int) error) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var result error
	if err := raw.Control(func(fd uintptr) { result = f(int(fd)) }); err != nil {
		return err
	}
	return result
}

// isNonsense reports whether an error is about what was received, and not of the socket: an early end, or no
// JSON.
func isNonsense(err error) bool {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	return errors.Is(err, errNonsense) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.As(err, &syntax) || errors.As(err, &kind)
}

// resultOf is the word for an error of a socket. Any other error is the test's own.
func resultOf(err error) (string, error) {
	var errno syscall.Errno
	switch {
	case errors.Is(err, errMisnamed):
		return misnamed, nil
	case isNonsense(err):
		return nonsense, nil
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return silence, nil
	case !errors.As(err, &errno):
		return "", err
	case errno == syscall.ECONNREFUSED:
		return refused, nil
	case errno == syscall.EPERM:
		return denied, nil
	case errno == syscall.ENOBUFS:
		return unsent, nil
	case errno == syscall.ENETUNREACH:
		return unreachable, nil
	case errno == syscall.EHOSTUNREACH:
		return nobody, nil
	}
	return errno.Error(), nil
}
