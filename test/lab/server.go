// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Answer is what a server sends for each request, as one line of JSON.
type Answer struct {
	// Pod is the name of the host that the server runs on.
	Pod string `json:"pod"`
	// Peer and Local are the connection's two ends as the server sees them; IPv4 addresses are not mapped.
	Peer  netip.AddrPort `json:"peer"`
	Local netip.AddrPort `json:"local"`
	// Payload is the request: the line without its newline (TCP), the datagram (UDP), the request URI
	// (HTTP).
	Payload string `json:"payload"`
}

// String is an answer in the words of a failed test.
func (a Answer) String() string {
	if a == (Answer{}) {
		return "no answer"
	}
	return fmt.Sprintf("%s, at %s, answers %s with %q", a.Pod, a.Local, a.Peer, a.Payload)
}

// ServerOptions configure a server. Most callers use the zero value.
type ServerOptions struct {
	TCP  uint16 `json:"tcp"`  // port of the line server, 8080 if 0
	HTTP uint16 `json:"http"` // port of the HTTP server, 8081 if 0
	UDP  uint16 `json:"udp"`  // port of the datagram server, 8080 if 0
	// Drain is how long established connections stay open after StopServer, unless their clients close them
	// before.
	Drain time.Duration `json:"drain"`
	// DNS is an additional name server.
	DNS DNSOptions `json:"dns"`
}

// serverConfig is the argument of a server's process.
type serverConfig struct {
	ServerOptions
	Pod string `json:"pod"`
}

// server is a server's process.
type server struct {
	serverConfig
	lines    net.Listener
	web      net.Listener
	datagram *net.UDPConn
	dns      struct {
		streams  net.Listener // nil: there is none
		datagram *net.UDPConn
	}

	open atomic.Int64 // TCP connections, of both servers
}

// runServer serves until SIGTERM, and then drains. It writes one line to helperFD as soon as it serves, which
// is empty or an error.
func runServer(argument string) error {
	setProcessName(helperServer)
	terminate := make(chan os.Signal, 1)
	signal.Notify(terminate, syscall.SIGTERM)
	ready := os.NewFile(helperFD, "ready")
	s := &server{}
	err := json.Unmarshal([]byte(argument), &s.serverConfig)
	if err == nil {
		err = s.listen()
	}
	if err != nil {
		fmt.Fprintln(ready, err)
		return err
	}
	fmt.Fprintln(ready)
	ready.Close()

	web := &http.Server{Handler: http.HandlerFunc(s.serveHTTP), ConnContext: withConn}
	go s.serveLines()
	go web.Serve(s.web)
	go serveDatagrams(s.datagram, s.answerDatagram)
	if s.dns.streams != nil {
		names := &nameServer{s.DNS, s.Pod}
		go names.serveStreams(s.dns.streams)
		go serveDatagrams(s.dns.datagram, func(request []byte, _, _ net.Addr) ([]byte, error) {
			return names.answer(request, plainSize, true)
		})
	}
	<-terminate
	s.drain()
	return nil
}

func (s *server) listen() (err error) {
	if s.lines, err = s.listenTCP(s.TCP); err != nil {
		return err
	}
	if s.web, err = s.listenTCP(s.HTTP); err != nil {
		return err
	}
	if s.datagram, err = listenUDP(s.UDP); err != nil || s.DNS.Port == 0 {
		return err
	}
	if s.dns.streams, err = s.listenTCP(s.DNS.Port); err != nil {
		return err
	}
	s.dns.datagram, err = listenUDP(s.DNS.Port)
	return err
}

// drain closes the listeners at once, and waits for the clients to close their connections. Datagrams are
// answered until the end: without connections, old clients look like new ones.
func (s *server) drain() {
	s.lines.Close()
	s.web.Close()
	if s.dns.streams != nil {
		s.dns.streams.Close()
	}
	deadline := time.Now().Add(s.Drain)
	for s.open.Load() > 0 && time.Now().Before(deadline) {
		time.Sleep(5 * time.Millisecond)
	}
}

// countingListener counts the open connections.
type countingListener struct {
	net.Listener
	open *atomic.Int64
}

func (s *server) listenTCP(port uint16) (net.Listener, error) {
	l, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		return nil, err
	}
	return countingListener{l, &s.open}, nil
}

func (l countingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.open.Add(1)
	return &countedConn{Conn: conn, closed: sync.OnceFunc(func() { l.open.Add(-1) })}, nil
}

type countedConn struct {
	net.Conn
	closed func()
}

func (c *countedConn) Close() error {
	defer c.closed()
	return c.Conn.Close()
}

func (s *server) answer(peer, local net.Addr, payload string) Answer {
	return Answer{Pod: s.Pod, Peer: unmapped(peer), Local: unmapped(local), Payload: payload}
}

// unmapped is the address of a TCP or UDP socket, as IPv4 if it is mapped.
func unmapped(addr net.Addr) netip.AddrPort {
	a, ok := addr.(interface{ AddrPort() netip.AddrPort })
	if !ok {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(a.AddrPort().Addr().Unmap(), a.AddrPort().Port())
}

func (s *server) serveLines() {
	for {
		conn, err := s.lines.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "accept:", err)
			time.Sleep(10 * time.Millisecond) // out of descriptors or the like
			continue
		}
		go s.serveConn(conn)
	}
}

func (s *server) serveConn(conn net.Conn) {
	defer conn.Close()
	requests, answers := bufio.NewScanner(conn), json.NewEncoder(conn)
	for requests.Scan() {
		if err := answers.Encode(s.answer(conn.RemoteAddr(), conn.LocalAddr(), requests.Text())); err != nil {
			return
		}
	}
}

// connKey is the context key of an HTTP request's connection.
type connKey struct{}

func withConn(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, conn)
}

func (s *server) serveHTTP(w http.ResponseWriter, r *http.Request) {
	conn := r.Context().Value(connKey{}).(net.Conn)
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(s.answer(conn.RemoteAddr(), conn.LocalAddr(), r.RequestURI))
}

// listenUDP opens a socket for both families that returns the destination address of each datagram: the answer
// must come from it.
func listenUDP(port uint16) (*net.UDPConn, error) {
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		if err := raw.Control(func(fd uintptr) {
			err = os.NewSyscallError("setsockopt IPV6_RECVPKTINFO",
				unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1))
		}); err != nil {
			return err
		}
		return err
	}}
	conn, err := config.ListenPacket(context.Background(), "udp", fmt.Sprintf("[::]:%d", port))
	if err != nil {
		return nil, err
	}
	return conn.(*net.UDPConn), nil
}

// serveDatagrams answers each datagram from its destination address.
func serveDatagrams(conn *net.UDPConn, answerTo func(request []byte, peer, local net.Addr) ([]byte, error)) {
	port := conn.LocalAddr().(*net.UDPAddr).Port
	request, control := make([]byte, 65536), make([]byte, 256)
	for {
		n, controlSize, _, peer, err := conn.ReadMsgUDPAddrPort(request, control)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "reading a datagram:", err)
			continue
		}
		info, to, err := packetInfo(control[:controlSize])
		if err != nil {
			fmt.Fprintln(os.Stderr, "reading a datagram:", err)
			continue
		}
		answer, err := answerTo(request[:n], net.UDPAddrFromAddrPort(peer), &net.UDPAddr{IP: to, Port: port})
		if err == nil {
			_, _, err = conn.WriteMsgUDPAddrPort(answer, info, peer)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "answering a datagram:", err)
		}
	}
}

func (s *server) answerDatagram(request []byte, peer, local net.Addr) ([]byte, error) {
	answer, err := json.Marshal(s.answer(peer, local, string(request)))
	return append(answer, '\n'), err
}

// packetInfo returns the control message that sends an answer from a datagram's destination address, and the
// address itself. On a socket for both families IPv4 addresses are mapped, in both directions, see ipv6(7).
func packetInfo(control []byte) (info []byte, to net.IP, err error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil, nil, err
	}
	for _, m := range messages {
		if m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_PKTINFO && len(m.Data) >= unix.SizeofInet6Pktinfo {
			to := slices.Clone(net.IP(m.Data[:net.IPv6len]))
			// Routing chooses the device (index 0), except for link-local addresses, which need
			// one.
			pktinfo := &unix.Inet6Pktinfo{Addr: [16]byte(to)}
			if to.IsLinkLocalUnicast() {
				pktinfo.Ifindex = binary.NativeEndian.Uint32(m.Data[net.IPv6len:])
			}
			return unix.PktInfo6(pktinfo), to, nil
		}
	}
	return nil, nil, errors.New("it has no destination address (IPV6_PKTINFO)")
}
