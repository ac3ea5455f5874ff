// SPDX-License-Identifier: Apache-2.0

package churn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/lab"
)

// A request by UDP is sent again without a reply, as resolvers do. So many tries outlast a machine that stalls for
// seconds, as one with all clients and programs on it does. mostAgain bounds them: a datagram that was sent again may
// have been lost.
const (
	tries      = 8
	tryTimeout = 650 * time.Millisecond
	mostAgain  = 0.002 // of the requests
)

// tcpTimeout bounds a request by TCP. No result depends on it: a lost SYN is retransmitted after a second.
const tcpTimeout = time.Minute

// pace is the time between the requests of one client.
const pace = 10 * time.Millisecond

// clients send requests to the Services from one host in one family until they are stopped.
type clients struct {
	cluster *cluster
	host    *lab.Host
	family  int // 0: IPv4, 1: IPv6
	end     chan struct{}
	running *sync.WaitGroup
}

// tally is the results of one kind of client.
type tally struct {
	kind     string
	mu       sync.Mutex
	answered int
	again    int // tries after one without a reply
	failed   int
	failures []string      // the first few
	latest   time.Duration // how long after its removal an endpoint was still chosen
}

func (l *tally) note(again int, late time.Duration, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.again += again
	l.latest = max(l.latest, late)
	if err == nil {
		l.answered++
		return
	}
	l.failed++
	if len(l.failures) < 10 {
		l.failures = append(l.failures, err.Error())
	}
}

func (l *tally) want(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	t.Logf("%s: %d requests answered, latest choice of a removed endpoint: after %v", l.kind, l.answered, l.latest.Round(time.Millisecond))
	if l.again > 0 {
		t.Logf("excused: %s: %d datagrams were sent again for %d requests", l.kind, l.again, l.answered)
	}
	if float64(l.again) > max(1, mostAgain*float64(l.answered)) {
		t.Errorf("%s: %d datagrams were sent again for %d requests", l.kind, l.again, l.answered)
	}
	if l.failed > 0 {
		t.Errorf("%s: %d requests failed, the first ones:\n  %s", l.kind, l.failed, strings.Join(l.failures, "\n  "))
	}
	if l.answered == 0 {
		t.Errorf("%s: no request was answered", l.kind)
	}
}

// run runs one client: request sends one request to a steady Service, or what precedes one.
func (c *clients) run(tally *tally, request func(*rand.Rand) (again int, late time.Duration, err error)) {
	random := rand.New(rand.NewPCG(rand.Uint64(), 0))
	c.running.Go(func() {
		for {
			select {
			case <-c.end:
				return
			case <-time.After(pace):
			}
			again, late, err := request(random)
			if err != nil {
				err = fmt.Errorf("%s %s: %w", time.Now().Format("05.000"), c.host.Name, err)
			}
			tally.note(again, late, err)
		}
	})
}

func (c *clients) anyService(random *rand.Rand) *service {
	steady := c.cluster.steady()
	return steady[random.IntN(len(steady))]
}

// tooLate is how long after its removal an endpoint may still be chosen, however busy the machine is. For
// endpoints whose server stops, it is grace.
const tooLate = 10 * time.Second

// A rule returns when an endpoint was removed.
type rule func(*endpoint) int64

// A new connection needs a ready endpoint (R10).
func connections(e *endpoint) int64 { return e.left.Load() }

// A UDP flow keeps its endpoint while that serves (R29).
func datagrams(e *endpoint) int64 { return e.removed.Load() }

// check returns what is wrong with an answer, and how late it is if the endpoint was removed before the
// request.
func (c *clients) check(s *service, answer lab.Answer, payload string, asked time.Time, r rule) (late time.Duration, err error) {
	for _, e := range s.endpoints {
		if answer.Local != netip.AddrPortFrom(e.addresses()[c.family], s.port) {
			continue
		}
		if since := r(e); since > 0 {
			late = max(0, asked.Sub(time.Unix(0, since)))
		}
		switch {
		case late > tooLate:
			return late, fmt.Errorf("%s: %v answers, which was removed %v before", s.name, answer.Local, late)
		case answer.Pod != e.pod.Name || answer.Payload != payload:
			return late, fmt.Errorf("%s: sent %q and got %+v", s.name, payload, answer)
		}
		return late, nil
	}
	return 0, fmt.Errorf("%s: %v answers, which is none of its endpoints", s.name, answer.Local)
}

// failed adds the Service and its last change to an error.
func (s *service) failed(what string, err error) error {
	last := "none"
	if text := s.last.Load(); text != nil {
		last = *text
	}
	return fmt.Errorf("%s: %s: %w; its last change: %s", s.name, what, err, last)
}

// dial connects to a Service.
func (c *clients) dial(network string, s *service) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), tcpTimeout)
	defer cancel()
	conn, err := c.host.Dial(ctx, network, s.ips[c.family].String())
	if err != nil {
		return nil, s.failed("connecting by "+network, err)
	}
	if err := wantPeer(conn, s.ips[c.family]); err != nil {
		conn.Close()
		return nil, s.failed(network, err)
	}
	return conn, nil
}

// wantPeer checks getpeername's result.
func wantPeer(conn net.Conn, want netip.AddrPort) error {
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return err
	}
	var sa unix.Sockaddr
	if control := raw.Control(func(fd uintptr) { sa, err = unix.Getpeername(int(fd)) }); control != nil {
		return control
	}
	var got netip.AddrPort
	switch a := sa.(type) {
	case *unix.SockaddrInet4:
		got = netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		got = netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port))
	}
	if err == nil && got != want {
		err = fmt.Errorf("getpeername says %v, want %v", got, want)
	}
	return err
}

// ask sends a request on a connection by TCP.
func ask(conn net.Conn, payload string) (lab.Answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), tcpTimeout)
	defer cancel()
	return lab.Ask(ctx, conn, payload)
}

// short makes a connection for each request.
func (c *clients) short(random *rand.Rand) (int, time.Duration, error) {
	s, payload, asked := c.anyService(random), fmt.Sprint(random.Uint32()), time.Now()
	conn, err := c.dial("tcp", s)
	if err != nil {
		return 0, 0, err
	}
	defer conn.Close()
	conn.(*net.TCPConn).SetLinger(0) // without TIME_WAIT, which would exhaust the ports
	answer, err := ask(conn, payload)
	if err != nil {
		return 0, 0, s.failed("asking by TCP", err)
	}
	late, err := c.check(s, answer, payload, asked, connections)
	return 0, late, err
}

// received is a reply by UDP and its source as the program sees it.
type received struct {
	lab.Answer
	from netip.AddrPort
}

// receive reads datagrams up to the reply to a request, and skips replies to earlier tries.
func receive(conn net.PacketConn, payload string) (r received, err error) {
	buffer := make([]byte, 1024)
	for {
		n, from, err := conn.ReadFrom(buffer)
		if err != nil {
			return r, err
		}
		r.from = from.(*net.UDPAddr).AddrPort()
		r.from = netip.AddrPortFrom(r.from.Addr().Unmap(), r.from.Port())
		r.Answer = lab.Answer{}
		if err := json.Unmarshal(buffer[:n], &r.Answer); err != nil {
			return r, err
		}
		if r.Payload == payload {
			return r, nil
		}
	}
}

// checkUDP checks a reply and its source.
func (c *clients) checkUDP(s *service, r received, payload string, asked time.Time) (time.Duration, error) {
	late, err := c.check(s, r.Answer, payload, asked, datagrams)
	if r.from != s.ips[c.family] {
		err = errors.Join(err, fmt.Errorf("%s: the reply comes from %v, want %v", s.name, r.from, s.ips[c.family]))
	}
	return late, err
}
