// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"beeline.io/beeline/test/lab"
)

// threshold is the default of --offload-threshold.
const threshold = 20

// A kind is a kind of NAT.
type kind struct {
	name   string
	public bool // the client's destination is translated
	host   int  // of networkTargets: the source of flows to host 3 is translated
}

var (
	plain = kind{"plain", false, 2}
	snat  = kind{"SNAT", false, 3}
	dnat  = kind{"DNAT", true, 2}
	both  = kind{"SNAT and DNAT", true, 3}
	kinds = []kind{plain, snat, dnat, both}
)

// A flow is of a client's socket and a server that sends back what it receives.
type flow struct {
	w       *world
	kind    kind
	family  family
	from    int // the client's network
	network string
	port    uint16 // the server's, and of its counter
	near    net.Conn
	tcp     *tcpServer
	udp     *udpServer
	number  uint64
}

func (f *flow) String() string {
	return fmt.Sprintf("%s, %s, %s, port %d", f.network, f.kind.name, f.family, f.port)
}

// open opens a flow of the client to an unused port of the server.
func (w *world) open(network string, k kind, f family) *flow {
	w.t.Helper()
	return w.openPort(network, k, f, w.port())
}

// openFrom is open from the client's address in a network.
func (w *world) openFrom(from int, network string, k kind, of family) *flow {
	w.t.Helper()
	f := &flow{w: w, kind: k, family: of, from: from, network: network, port: w.port()}
	f.listen()
	f.dial()
	return f
}

// port is one that no flow has.
func (w *world) port() uint16 {
	w.t.Helper()
	port := w.ports.Add(1) - 1
	if port >= firstPort+portCount {
		w.t.Fatalf("%d ports are too few: raise portCount", portCount)
	}
	return uint16(port)
}

// openPort is open with a certain port.
func (w *world) openPort(network string, k kind, of family, port uint16) *flow {
	w.t.Helper()
	f := &flow{w: w, kind: k, family: of, from: networkClient, network: network, port: port}
	f.listen()
	f.dial()
	return f
}

// server is the address that the server listens on, target the one that the client sends to.
func (f *flow) server() netip.AddrPort {
	return netip.AddrPortFrom(f.family.address(networkTargets, f.kind.host), f.port)
}

func (f *flow) target() netip.AddrPort {
	if f.kind.public {
		return netip.AddrPortFrom(f.family.address(networkPublic, f.kind.host), f.port+portShift)
	}
	return f.server()
}

// source is the address that the server sees.
func (f *flow) source() netip.Addr {
	if f.kind.host == 3 {
		return f.family.address(networkServer, 1)
	}
	return f.family.address(f.from, 2)
}

// listen starts the server.
func (f *flow) listen() {
	f.w.t.Helper()
	if f.network == "udp" {
		conn, err := f.w.host("server").ListenPacket("udp", f.server().String())
		f.w.must(err)
		f.udp = &udpServer{conn: conn.(*net.UDPConn), v6: f.family == 1}
		f.w.must(f.udp.start())
		f.w.t.Cleanup(func() { conn.Close() })
		return
	}
	l, err := f.w.host("server").Listen("tcp", f.server().String())
	f.w.must(err)
	f.tcp = &tcpServer{listener: l, accepted: make(chan *net.TCPConn, 1), ended: make(chan error, 1)}
	go f.tcp.serve()
	f.w.t.Cleanup(func() { l.Close() })
}

// dial opens the client's socket, and checks which addresses both sides see.
func (f *flow) dial() {
	f.w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := f.w.host("client").DialWith(ctx, lab.DialOptions{Local: netip.AddrPortFrom(f.family.address(f.from, 2), 0)}, f.network, f.target().String())
	f.w.must(err)
	f.near = conn
	f.w.t.Cleanup(func() { conn.Close() })
	f.w.must(f.exchange(1))
	if from := f.peer(); from.Addr() != f.source() {
		f.w.t.Errorf("%s: the server sees %s, want %s", f, from, f.source())
	}
}

// peer is the client's address and port as the server sees them.
func (f *flow) peer() netip.AddrPort {
	if f.udp != nil {
		return *f.udp.from.Load()
	}
	return f.tcp.conn().RemoteAddr().(*net.TCPAddr).AddrPort()
}

// exchange sends so many requests, each when the last one was answered.
func (f *flow) exchange(count int) error { return f.exchangeWithin(count, patience/6) }

func (f *flow) exchangeWithin(count int, each time.Duration) error {
	for range count {
		if err := f.request(64, each); err != nil {
			return fmt.Errorf("%s: request %d: %w%s", f, f.number, err, f.serverEnd())
		}
	}
	return nil
}

// request sends so many bytes, and waits for the answer. Answers to earlier requests of the same size may come first.
func (f *flow) request(size int, limit time.Duration) error {
	f.number++
	sent, got := make([]byte, size), make([]byte, size)
	pattern(f.number, sent)
	if err := f.near.SetDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	if _, err := f.near.Write(sent); err != nil {
		return err
	}
	for {
		n, err := f.answer(got)
		switch {
		case err != nil:
			return err
		case n >= 8 && binary.BigEndian.Uint64(got) < f.number: // to an earlier request
		case !bytes.Equal(got, sent):
			return errors.New("the answer differs")
		default:
			return nil
		}
	}
}

// answer reads one.
func (f *flow) answer(into []byte) (int, error) {
	if f.network == "udp" {
		return f.near.Read(into)
	}
	return io.ReadFull(f.near, into)
}

// pattern is the contents of message n, at least 8 bytes.
func pattern(n uint64, into []byte) {
	for i := range into {
		into[i] = byte(uint64(i)*(n|1) + uint64(i>>8))
	}
	binary.BigEndian.PutUint64(into, n)
}

// transfer sends so many blocks on a connection, and checks that they come back. It fails if none comes for a while:
// how long all take depends on the machine.
func (f *flow) transfer(blocks int) error {
	const size = 64 << 10
	sent := make(chan error, 1)
	go func() {
		b := make([]byte, size)
		for n := range blocks {
			pattern(uint64(n), b)
			if _, err := f.near.Write(b); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	want, got := make([]byte, size), make([]byte, size)
	for n := range blocks {
		if err := f.near.SetDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		pattern(uint64(n), want)
		if _, err := io.ReadFull(f.near, got); err != nil {
			return fmt.Errorf("%s: block %d: %w%s", f, n, err, f.serverEnd())
		}
		if !bytes.Equal(want, got) {
			return fmt.Errorf("%s: block %d differs", f, n)
		}
	}
	return <-sent
}

// serverEnd says how the server has ended a connection, which is often why the client has failed.
func (f *flow) serverEnd() string {
	if f.tcp == nil {
		return ""
	}
	select {
	case err := <-f.tcp.ended:
		f.tcp.ended <- err
		return fmt.Sprintf(" (the server ended with %v)", err)
	case <-time.After(100 * time.Millisecond):
		return ""
	}
}

// settle exchanges requests of flows until each is short-cut: until the stack sees none of its packets. The
// kernel takes a UDP flow for established when it is two seconds old.
func (w *world) settle(all ...*flow) {
	w.t.Helper()
	waiting := slices.Clone(all)
	w.eventually("flows are short-cut", func() bool {
		waiting = slices.DeleteFunc(waiting, func(f *flow) bool {
			w.must(f.exchange(threshold + 10)) // at once: a flow that pauses is counted anew
			before := w.onStack(f.port)
			w.must(f.exchange(threshold))
			return *stack || w.onStack(f.port) == before
		})
		return len(waiting) == 0
	})
}

// settle settles one flow.
func (f *flow) settle() {
	f.w.t.Helper()
	f.w.settle(f)
}

// wantStack checks that the stack forwards each packet of a flow, however many it has had.
func (f *flow) wantStack() {
	f.w.t.Helper()
	f.w.must(f.exchange(60))
	time.Sleep(300 * time.Millisecond)
	before := f.w.onStack(f.port)
	f.w.must(f.exchange(20))
	if seen := f.w.onStack(f.port) - before; seen < 40 {
		f.w.t.Errorf("%s: the stack has forwarded %d of at least 40 packets", f, seen)
	}
}

// A tcpServer accepts one connection and sends back what it receives.
type tcpServer struct {
	listener net.Listener
	accepted chan *net.TCPConn
	current  atomic.Pointer[net.TCPConn]
	ended    chan error // nil after a FIN
}

func (s *tcpServer) serve() {
	conn, err := s.listener.Accept()
	if err != nil {
		return
	}
	defer conn.Close()
	c := conn.(*net.TCPConn)
	s.accepted <- c
	_, err = io.Copy(c, c)
	if err == nil {
		err = c.CloseWrite()
	}
	s.ended <- err
}

// conn is the connection.
func (s *tcpServer) conn() *net.TCPConn {
	if c := s.current.Load(); c != nil {
		return c
	}
	c := <-s.accepted
	s.current.Store(c)
	return c
}
