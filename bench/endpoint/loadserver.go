// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/lab"
)

// More requests, of LoadConfig, IdleConfig and FloodConfig.
const (
	requestIdle      = 'i' // answer, and keep the connection for ever
	requestIdleSpeak = 'j' // the same, and speak first on request
	requestDatagram  = 'q' // echo it
	// A flood's datagrams: the server's socket drops one kind, and answers the other.
	floodSilent   = 'f'
	floodAnswered = 'a'
	// serverSpeaks is what the server says first.
	serverSpeaks = 's'
)

type loadServerConfig struct {
	Port uint16 `json:"port"`
	// Clients are the source addresses of all clients.
	Clients netip.Prefix `json:"clients"`
	CPU     int          `json:"cpu"`
}

// LoadServer is the server of loads, of idle connections and of floods: TCP and UDP over IPv4.
type LoadServer struct{ *talker }

// ServedCount is a server's counters.
type ServedCount struct {
	Connections int `json:"connections"`
	Datagrams   int `json:"datagrams"`
	Flood       int `json:"flood"` // answered datagrams of a flood
	// Strange are connections and datagrams from other addresses.
	Strange int `json:"strange"`
	// Discarded are connections that were closed to make room for others.
	Discarded int `json:"discarded"`
}

// StartLoadServer starts a server, and returns when it listens.
func StartLoadServer(ctx context.Context, host *lab.Host, port uint16, clients netip.Prefix, cpu int) (*LoadServer, error) {
	t, err := startTalker(ctx, host, partLoadServer, loadServerConfig{port, clients, cpu})
	return &LoadServer{t}, err
}

// Speak has the server speak on the idle connections on which it is first.
func (s *LoadServer) Speak() error { return s.tell(tellSpeak) }

// Finish ends the server, and returns its counters.
func (s *LoadServer) Finish() (c ServedCount, err error) {
	err = s.finish(&c)
	return c, err
}

// loadServer is the server's process.
type loadServer struct {
	clients  netip.Prefix
	epoll    int
	listener int
	question int // UDP: the clients' socket
	flood    int // UDP: the flood's socket
	peer     *sockaddr
	// opened is when each descriptor's connection was accepted; 0: none, or one without a limit.
	opened []time.Duration
	// waiting are connections in the order of their arrival.
	waiting []waitingConnection
	speaks  map[int]bool
	start   time.Time
	open    int
	count   ServedCount
	buffer  [64]byte
}

type waitingConnection struct {
	fd     int
	opened time.Duration
}

// A connection without a request is closed after some time, and sooner if there are very many: its client is
// gone, and this keeps a server working.
const loadServerPatience = 30 * time.Second

func runLoadServer(config loadServerConfig) error {
	s := &loadServer{clients: config.Clients, peer: &sockaddr{family: unix.AF_INET}, opened: make([]time.Duration, openFiles()),
		speaks: map[int]bool{}, start: time.Now().Add(-time.Second)}
	if err := s.listen(netip.AddrPortFrom(netip.IPv4Unspecified(), config.Port)); err != nil {
		return err
	}
	fmt.Println()
	return s.serve()
}

func (s *loadServer) listen(at netip.AddrPort) (err error) {
	if s.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return err
	}
	if s.listener, err = bound(at, unix.SOCK_STREAM|unix.SOCK_NONBLOCK); err != nil {
		return err
	}
	if err := unix.Listen(s.listener, 1<<16); err != nil { // limited by net.core.somaxconn
		return os.NewSyscallError("listen", err)
	}
	// Two sockets share the port, so that a flood does not fill the queue of the clients' requests: the
	// backend should not be the bottleneck.
	if s.question, err = s.datagramSocket(at); err != nil {
		return err
	}
	choose := []unix.SockFilter{ // by the payload: socket 0 for a request, else 1
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 0},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: requestDatagram, Jt: 0, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
		{Code: unix.BPF_RET | unix.BPF_K, K: 1},
	}
	if err := unix.SetsockoptSockFprog(s.question, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, fprog(choose)); err != nil {
		return fmt.Errorf("SO_ATTACH_REUSEPORT_CBPF: %w", err)
	}
	if s.flood, err = s.datagramSocket(at); err != nil {
		return err
	}
	const udpHeader = 8
	answered := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: udpHeader},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: floodAnswered, Jt: 0, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 1 << 16},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
	if err := unix.SetsockoptSockFprog(s.flood, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, fprog(answered)); err != nil {
		return fmt.Errorf("SO_ATTACH_FILTER: %w", err)
	}
	for _, fd := range []int{s.listener, s.question, s.flood, unix.Stdin} {
		if errno := epollAdd(s.epoll, fd, unix.EPOLLIN, int32(fd)); errno != 0 {
			return os.NewSyscallError("epoll_ctl", errno)
		}
	}
	return nil
}

func fprog(filter []unix.SockFilter) *unix.SockFprog {
	return &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
}

func (s *loadServer) datagramSocket(at netip.AddrPort) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	const queue = 2 << 20 // for 5,000 requests: more would wait for too long
	for _, option := range []struct{ name, value int }{{unix.SO_REUSEPORT, 1}, {unix.SO_RCVBUFFORCE, queue}, {unix.SO_SNDBUFFORCE, queue}} {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, option.name, option.value); err != nil {
			return -1, os.NewSyscallError("setsockopt", err)
		}
	}
	return fd, os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}))
}

// The work per turn for one socket, so that others get theirs.
const loadServerTurn = 64

func (s *loadServer) serve() error {
	events := make([]unix.EpollEvent, 256)
	for {
		n, errno := epollWait(s.epoll, events, 1000)
		if errno != 0 {
			return os.NewSyscallError("epoll_wait", errno)
		}
		now := time.Since(s.start)
		for _, event := range events[:n] {
			var err error
			switch fd := int(event.Fd); fd {
			case unix.Stdin:
				done, err := s.obey()
				if done || err != nil {
					return err
				}
			case s.listener:
				err = s.welcome(now)
			case s.question:
				err = s.echo(fd, &s.count.Datagrams)
			case s.flood:
				err = s.echo(fd, &s.count.Flood)
			default:
				s.answer(fd)
			}
			if err != nil {
				return err
			}
		}
		s.discard(now)
	}
}

// obey executes a line of standard input.
func (s *loadServer) obey() (done bool, err error) {
	n, err := unix.Read(unix.Stdin, s.buffer[:])
	if err != nil || n == 0 {
		return true, err
	}
	for _, line := range strings.Fields(string(s.buffer[:n])) {
		switch line {
		case tellSpeak:
			for fd := range s.speaks {
				send(fd, []byte{serverSpeaks})
			}
		case tellFinish:
			return true, printJSON(s.count)
		}
	}
	return false, nil
}

func (s *loadServer) noteClient() {
	if !s.clients.Contains(netip.AddrFrom4(s.peer.v4.Addr)) {
		s.count.Strange++
	}
}

func (s *loadServer) welcome(now time.Duration) error {
	for range loadServerTurn {
		fd, errno := acceptFrom(s.listener, s.peer)
		switch errno {
		case 0:
		case unix.EAGAIN:
			return nil
		case unix.ECONNABORTED:
			continue
		default:
			return os.NewSyscallError("accept", errno)
		}
		if errno := epollAdd(s.epoll, fd, unix.EPOLLIN, int32(fd)); errno != 0 {
			return os.NewSyscallError("epoll_ctl", errno)
		}
		s.noteClient()
		s.count.Connections++
		s.open++
		s.opened[fd] = now
		s.waiting = append(s.waiting, waitingConnection{fd, now})
		s.answer(fd) // the request has often arrived already
	}
	return nil
}

func (s *loadServer) answer(fd int) {
	n, errno := receive(fd, s.buffer[:1])
	if errno == unix.EAGAIN {
		return
	}
	if n == 1 && errno == 0 {
		request := s.buffer[0]
		switch request {
		case requestIdleSpeak:
			s.speaks[fd] = true
			fallthrough
		case requestIdle:
			s.opened[fd] = 0
		}
		if _, errno = send(fd, s.buffer[:1]); errno == 0 && request != requestClose {
			return
		}
	}
	s.close(fd)
}

func (s *loadServer) close(fd int) {
	delete(s.speaks, fd)
	s.opened[fd] = 0
	s.open--
	closeFD(fd)
}

// discard closes connections whose clients are gone.
func (s *loadServer) discard(now time.Duration) {
	for len(s.waiting) > 0 {
		w := s.waiting[0]
		if s.opened[w.fd] == w.opened {
			if now-w.opened < loadServerPatience && s.open < len(s.opened)*3/4 {
				return
			}
			s.count.Discarded++
			resetOnClose(w.fd)
			s.close(w.fd)
		}
		s.waiting = s.waiting[1:]
	}
}

// echo sends datagrams back.
func (s *loadServer) echo(fd int, count *int) error {
	for range loadServerTurn {
		n, errno := receiveFrom(fd, s.buffer[:], s.peer)
		switch errno {
		case 0:
		case unix.EAGAIN:
			return nil
		case unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH: // ICMP errors about earlier replies
			continue
		default:
			return os.NewSyscallError("recvfrom", errno)
		}
		s.noteClient()
		*count++
		if n > 0 {
			sendTo(fd, s.buffer[:n], s.peer) // the client counts losses
		}
	}
	return nil
}
