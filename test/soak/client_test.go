// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// How long a client waits for an answer, and pauses after it. TCP retransmits what is lost once; a datagram that
// is lost stays lost.
const (
	patienceTCP = 20 * time.Second
	patienceUDP = 5 * time.Second
	pace        = 60 * time.Millisecond
	slow        = time.Second // an answer that took longer: something was retransmitted
)

// A client sends requests of one kind from one host to one address of a Service.
type client struct {
	*world
	*tally
	host   string
	to     netip.AddrPort
	number int // of the Service

	mu   sync.Mutex
	conn net.Conn // of a long flow
	pod  string   // that serves it: it must stay
}

// tally counts the requests of one kind of client at one place.
type tally struct {
	place, kind string

	mu sync.Mutex
	outcomes
	latest time.Duration
}

// outcomes counts requests.
type outcomes struct {
	tried, late, lost int
	spent             int // lost, as the event declares
	overflowed        int // datagrams lost while a queue before or after the node overflowed
}

func (l *tally) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprintf("%-16s %-14s %8d requests, %3d after more than %v (the longest %v), %3d lost as declared, %3d in full queues, %3d lost",
		l.place, l.kind, l.tried, l.late, slow, l.latest.Round(time.Millisecond), l.spent, l.overflowed, l.lost)
}

// kinds are the kinds of clients.
var kinds = []struct {
	name, network string
	services      []int
	run           func(*client) error
}{
	{"long TCP", "tcp", []int{steady, changing}, (*client).long},
	{"short TCP", "tcp", []int{changing}, (*client).short},
	{"sticky TCP", "tcp", []int{sticky}, (*client).short},
	{"long UDP", "udp", []int{steady}, (*client).long},
	{"one-shot UDP", "udp", []int{steady}, (*client).short},
	{"unconnected UDP", "udp", []int{steady}, (*client).unconnected},
}

// places are where clients are: behind the device with XDP, behind that with tc, in a pod, and on the node.
var places = []struct{ name, host string }{
	{"client by XDP", "client"}, {"client by tc", "client2"}, {"pod", "a2"}, {"node", "node-a"},
}

// startClients starts clients of all kinds at all places in both families.
func (w *world) startClients() {
	w.running.Go(func() { w.queues.watch(w) })
	for _, p := range places {
		for _, k := range kinds {
			l := &tally{place: p.name, kind: k.name}
			w.tallies = append(w.tallies, l)
			for _, n := range k.services {
				for family := range 2 {
					c := &client{world: w, tally: l, host: p.host, to: w.address(p.host, n, family), number: n}
					w.clients = append(w.clients, c)
					w.running.Go(func() { c.loop(k.network, k.run) })
				}
			}
		}
	}
}

// address is what clients on a host connect to: external ones to a NodePort, others to a ClusterIP.
func (w *world) address(host string, n, family int) netip.AddrPort {
	if host == "client" || host == "client2" {
		return netip.AddrPortFrom(w.ownAddresses(host)[family], uint16(nodePort+n))
	}
	return netip.AddrPortFrom(netip.MustParseAddr(node.ClusterIPs(uint8(n))[family]), 80)
}

func (c *client) network() string {
	if c.kind == "long TCP" || c.kind == "short TCP" || c.kind == "sticky TCP" {
		return "tcp"
	}
	return "udp"
}

// loop sends requests until the world ends, and counts what becomes of them.
func (c *client) loop(_ string, run func(*client) error) {
	random := rand.New(rand.NewPCG(rand.Uint64(), 0))
	defer c.leave()
	for {
		select {
		case <-c.end:
			return
		case <-time.After(pace/2 + time.Duration(random.Int64N(int64(pace)))):
		}
		begin := time.Now()
		err := run(c)
		c.note(begin, err)
	}
}

func (c *client) note(begin time.Time, err error) {
	took := time.Since(begin)
	declared := err != nil && c.declared(c, begin)
	overflowed := err != nil && c.network() == "udp" && c.queues.overflowed(begin) // TCP sends again
	c.tally.mu.Lock()
	defer c.tally.mu.Unlock()
	c.tried++
	switch {
	case declared:
		c.spent++
	case overflowed:
		c.overflowed++
	case err != nil:
		if c.lost++; c.lost <= 5 {
			c.t.Errorf("%s  %s, %s to %s %s, begun %v before: %v", time.Now().Format("05.000"), c.place, c.kind, serviceNames[c.number], c.to, took.Round(time.Millisecond), err)
		}
	case took > slow:
		c.late++
	}
	if err == nil {
		c.latest = max(c.latest, took)
	}
}

func (c *client) context() (context.Context, context.CancelFunc) {
	limit := patienceTCP
	if c.network() == "udp" {
		limit = patienceUDP
	}
	return context.WithTimeout(context.Background(), limit)
}

// served checks who has answered: a flow and a client with session affinity keep their pod.
func (c *client) served(answer lab.Answer, err error, payload string) error {
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	before := cmp.Or(c.pod, answer.Pod)
	if c.number == sticky || c.conn != nil {
		c.pod = answer.Pod
	}
	if answer.Payload != payload || answer.Pod != before {
		return fmt.Errorf("pod %s answers %q, want pod %s and %q", answer.Pod, answer.Payload, before, payload)
	}
	return nil
}

// short sends a request on a connection, or from a connected socket, of its own.
func (c *client) short() error {
	ctx, cancel := c.context()
	defer cancel()
	payload := fmt.Sprint(rand.Uint32())
	answer, err := c.Host(c.host).Request(ctx, c.network(), c.to.String(), payload)
	return c.served(answer, err, payload)
}

// long sends a request on a connection, or from a connected socket, that stays. A failed one is replaced.
func (c *client) long() error {
	ctx, cancel := c.context()
	defer cancel()
	if c.conn == nil {
		conn, err := c.Host(c.host).Dial(ctx, c.network(), c.to.String())
		if err != nil {
			return err
		}
		c.keep(conn)
	}
	payload := fmt.Sprint(rand.Uint32())
	answer, err := lab.Ask(ctx, c.conn, payload)
	if err = c.served(answer, err, payload); err != nil {
		c.leave()
	}
	return err
}

// unconnected sends a request from an unconnected socket of its own.
func (c *client) unconnected() error {
	ctx, cancel := c.context()
	defer cancel()
	any := "0.0.0.0:0"
	if c.to.Addr().Is6() {
		any = "[::]:0"
	}
	socket, err := c.Host(c.host).ListenPacket("udp", any)
	if err != nil {
		return err
	}
	defer socket.Close()
	deadline, _ := ctx.Deadline()
	socket.SetDeadline(deadline)
	if _, err := socket.WriteTo([]byte("hello"), net.UDPAddrFromAddrPort(c.to)); err != nil {
		return err
	}
	answer := make([]byte, 512)
	_, from, err := socket.ReadFrom(answer)
	if err != nil {
		return err
	}
	if got := from.(*net.UDPAddr).AddrPort(); got.Port() != c.to.Port() || got.Addr().Unmap() != c.to.Addr() {
		return fmt.Errorf("an answer comes from %s, want %s", got, c.to)
	}
	return nil
}

func (c *client) keep(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conn, c.pod = conn, ""
}

func (c *client) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil {
		c.conn.Close()
	}
	c.conn, c.pod = nil, ""
}

// flow is the address and port of a client's long flow, if it has one.
func (c *client) flow() (from netip.AddrPort, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == nil {
		return from, false
	}
	switch a := c.conn.LocalAddr().(type) {
	case *net.TCPAddr:
		return a.AddrPort(), true
	case *net.UDPAddr:
		return a.AddrPort(), true
	}
	return from, false
}

// A window is a time in which some clients may lose requests.
type window struct {
	from, to time.Time // to is zero while it lasts
	may      func(*client) bool
}

// open opens a window; the returned function closes it.
func (w *world) open(may func(*client) bool) (shut func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := len(w.windows)
	w.windows = append(w.windows, window{from: time.Now(), may: may})
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.windows[i].to = time.Now()
	}
}

// declared reports whether a window declares the loss of a client's request that began at a time and ends now.
func (w *world) declared(c *client, begin time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.windows, func(x window) bool {
		return x.may(c) && (x.to.IsZero() || x.to.After(begin))
	})
}

// counts sums the requests tried and lost.
func (w *world) counts() (all outcomes) {
	for _, l := range w.tallies {
		l.mu.Lock()
		all.tried, all.spent, all.overflowed, all.lost = all.tried+l.tried, all.spent+l.spent, all.overflowed+l.overflowed, all.lost+l.lost
		l.mu.Unlock()
	}
	return all
}
