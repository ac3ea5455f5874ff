// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// DialOptions changes how a Dial connects. The zero value changes nothing.
type DialOptions struct {
	// V4Mapped connects to an IPv4 address by an AF_INET6 socket and the
	// address ::ffff:a.b.c.d, as many runtimes do.
	V4Mapped bool
	// Local is bound to before connecting if valid; its port may be 0.
	Local netip.AddrPort
	// Control is called with the socket before it is bound and connected.
	Control func(fd int) error
}

// Dial connects a socket of the host to address, an IP address and port. Networks are tcp, tcp4, tcp6, udp,
// udp4 and udp6. errors.Is(err, syscall.ECONNREFUSED) tests the errno of a failed connection; the end of ctx is
// an error of its own. LocalAddr and RemoteAddr of the connection are the results of getsockname and
// getpeername.
func (h *Host) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return h.DialWith(ctx, DialOptions{}, network, address)
}

// DialWith is Dial with options.
func (h *Host) DialWith(ctx context.Context, options DialOptions, network, address string) (net.Conn, error) {
	conn, err := h.dial(ctx, options, network, address)
	if err != nil {
		opErr := &net.OpError{Op: "dial", Net: network, Err: err}
		if remote, err := netip.ParseAddrPort(address); err == nil {
			opErr.Addr = net.TCPAddrFromAddrPort(remote)
		}
		return nil, opErr
	}
	return conn, nil
}

func (h *Host) dial(ctx context.Context, options DialOptions, network, address string) (net.Conn, error) {
	e, err := parseEndpoint(network, address, options.V4Mapped)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	f, err := h.socketFile(e)
	if err != nil {
		return nil, err
	}
	defer f.Close() // FileConn takes a duplicate
	fd := int(f.Fd())
	if options.Control != nil {
		if err := options.Control(fd); err != nil {
			return nil, err
		}
	}
	if options.Local.IsValid() {
		if err := unix.Bind(fd, sockaddr(options.Local, e.family)); err != nil {
			return nil, os.NewSyscallError("bind", err)
		}
	}
	if err := connect(ctx, f, e); err != nil {
		return nil, err
	}
	return net.FileConn(f)
}

// Listen listens for TCP connections to the host; network is tcp, tcp4 or tcp6.
// The address is an IP address and port; tcp on [::] serves both families.
func (h *Host) Listen(network, address string) (net.Listener, error) {
	f, err := h.bind(network, address, unix.SOCK_STREAM)
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Err: err}
	}
	defer f.Close()
	if err := h.listen(int(f.Fd())); err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Err: err}
	}
	return net.FileListener(f)
}

// ListenPacket opens a UDP socket of the host; network is udp, udp4 or udp6.
func (h *Host) ListenPacket(network, address string) (net.PacketConn, error) {
	f, err := h.bind(network, address, unix.SOCK_DGRAM)
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Err: err}
	}
	defer f.Close()
	return net.FilePacketConn(f)
}

func (h *Host) bind(network, address string, kind int) (*os.File, error) {
	e, err := parseEndpoint(network, address, false)
	if err != nil {
		return nil, err
	}
	if e.kind != kind {
		return nil, net.UnknownNetworkError(network)
	}
	f, err := h.socketFile(e)
	if err != nil {
		return nil, err
	}
	fd := int(f.Fd())
	if kind == unix.SOCK_STREAM {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}
	if err == nil && e.family == unix.AF_INET6 {
		err = setFlag(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, e.v6only)
	}
	if err == nil {
		err = unix.Bind(fd, sockaddr(e.addr, e.family))
	}
	if err != nil {
		f.Close()
		return nil, os.NewSyscallError("bind", err)
	}
	return f, nil
}

// endpoint is a network and address in the kernel's terms.
type endpoint struct {
	family, kind int
	v6only       bool
	addr         netip.AddrPort
}

func parseEndpoint(network, address string, v4mapped bool) (endpoint, error) {
	var e endpoint
	proto, version := strings.TrimRight(network, "46"), strings.TrimLeft(network, "tcpud")
	switch proto {
	case "tcp":
		e.kind = unix.SOCK_STREAM
	case "udp":
		e.kind = unix.SOCK_DGRAM
	default:
		return e, net.UnknownNetworkError(network)
	}
	var err error
	if e.addr, err = netip.ParseAddrPort(address); err != nil {
		return e, fmt.Errorf("address %q: use an IP address and a port: %w", address, err)
	}
	addr := e.addr.Addr()
	e.family = unix.AF_INET6
	if addr.Is4() && !v4mapped {
		e.family = unix.AF_INET
	}
	fits := map[string]bool{"": true, "4": addr.Unmap().Is4(), "6": !addr.Is4() || v4mapped}
	if ok, known := fits[version]; !known {
		return e, net.UnknownNetworkError(network)
	} else if !ok {
		return e, fmt.Errorf("address %s does not suit network %s", address, network)
	}
	e.v6only = version == "6"
	return e, nil
}

// socketFile is a non-blocking socket of the host for the endpoint.
func (h *Host) socketFile(e endpoint) (*os.File, error) {
	fd, err := h.Socket(e.family, e.kind|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "socket of "+h.Name), nil
}

// sockaddr converts addr for a socket of the family; IPv4 is mapped into IPv6.
func sockaddr(addr netip.AddrPort, family int) unix.Sockaddr {
	if family == unix.AF_INET {
		return &unix.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().Unmap().As4()}
	}
	return &unix.SockaddrInet6{Port: int(addr.Port()), Addr: addr.Addr().As16()}
}
