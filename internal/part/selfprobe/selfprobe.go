// SPDX-License-Identifier: Apache-2.0

// Package selfprobe proves that the socket shortcut serves: it connects to a Service of its own, whose backends
// are listeners of this process. The Service takes the path of all others: rules, tables, the hook of connect(2).
package selfprobe

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/util/wakeup"
)

// The Service. No API object has its namespace, because of the underscore (RFC 1123).
const (
	namespace, name = "_beeline", "self-probe"
	port            = 10255
)

// addresses are those of the Service. If a packet to them is not translated, it reaches nobody: nothing listens
// at the IPv4 address, which is a loopback address, and packets to the IPv6 prefix are discarded (RFC 6666). No
// ClusterIP, ingress IP or external IP can be a loopback address.
var addresses = map[service.Family]netip.AddrPort{
	service.IPv4: netip.AddrPortFrom(netip.MustParseAddr("127.181.66.76"), port),
	service.IPv6: netip.AddrPortFrom(netip.MustParseAddr("100::b181:66:76"), port),
}

const (
	// interval is the time between two probes.
	interval = time.Second
	// timeout bounds one connection.
	timeout = 2 * time.Second
	// fall is the number of consecutive failures after which the probe counts as failed: a change of the
	// tables or a busy machine may cost one.
	fall = 2
)

// A Probe is the listeners and the state of the connections to them.
type Probe struct {
	log       *slog.Logger
	token     []byte // what the listeners send
	listeners map[service.Family]net.Listener
	begin     chan struct{}

	mu       sync.Mutex
	failures map[service.Family]int
	errors   map[service.Family]error
}

// New listens. Without IPv6 on this machine only IPv4 is probed.
func New(log *slog.Logger) (*Probe, error) {
	p := &Probe{log: log, token: make([]byte, 16), listeners: map[service.Family]net.Listener{}, begin: make(chan struct{}),
		failures: map[service.Family]int{}, errors: map[service.Family]error{}}
	rand.Read(p.token)
	var config net.ListenConfig
	config.SetMultipathTCP(false) // the kernel connects subflows itself, past the hooks
	for family, loopback := range map[service.Family]string{service.IPv4: "127.0.0.1:0", service.IPv6: "[::1]:0"} {
		l, err := config.Listen(context.Background(), "tcp", loopback)
		switch {
		case err == nil:
			p.listeners[family] = l
		case family == service.IPv6 && (errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.EAFNOSUPPORT)):
			log.Warn("--self-probe: this machine has no ::1; only IPv4 is probed", "error", err)
		default:
			p.Close()
			return nil, fmt.Errorf("--self-probe: %w", err)
		}
	}
	return p, nil
}

// Close closes the listeners.
func (p *Probe) Close() {
	for _, l := range p.listeners {
		l.Close()
	}
}

// Objects returns the Service and its endpoints, as local endpoints of a node. The Service is older than any
// other, so that it keeps its addresses and finds room.
func (p *Probe) Objects(node string) (all []service.Change) {
	s := &service.Service{
		Namespace: namespace, Name: name, Created: time.Unix(0, 0), Type: "ClusterIP", NodeOnly: true, Algorithm: service.Random,
		DSR: service.DSROff, Ports: []service.ServicePort{{Name: name, Protocol: service.TCP, Port: port}},
	}
	for family, l := range p.listeners {
		at := l.Addr().(*net.TCPAddr).AddrPort()
		s.ClusterIPs, s.IPFamilies = append(s.ClusterIPs, addresses[family].Addr().String()), append(s.IPFamilies, family)
		all = append(all, change(&service.EndpointSlice{
			Namespace: namespace, Name: fmt.Sprintf("%s-%d", name, family), Service: name, Family: family,
			Ports:     []service.EndpointPort{{Name: name, Protocol: service.TCP, Port: at.Port()}},
			Endpoints: []service.Endpoint{{Addr: at.Addr().Unmap(), Node: node, Ready: true, Serving: true, Weight: 1}},
		}))
	}
	return append(all, change(s))
}

func change(o service.Object) service.Change { return service.Change{Ref: o.Ref(), Object: o} }

// Begin starts the connections: the tables have the Service, and the hooks are attached. Call it once.
func (p *Probe) Begin() { close(p.begin) }

// Run connects every second until ctx ends, after Begin.
func (p *Probe) Run(ctx context.Context) error {
	defer p.Close()
	for _, l := range p.listeners {
		go p.answer(l)
	}
	select {
	case <-ctx.Done():
		return nil
	case <-p.begin:
	}
	for running := true; running; running = wakeup.Sleep(ctx, interval) {
		for family := range p.listeners {
			p.note(ctx, family, p.connect(ctx, family))
		}
	}
	return nil
}

// answer sends the token to each client.
func (p *Probe) answer(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			time.Sleep(interval) // out of file descriptors, for example
			continue
		}
		conn.SetDeadline(time.Now().Add(timeout))
		conn.Write(p.token)
		conn.Close()
	}
}

// connect opens a connection to the Service, and reads the token. The socket is bound to the loopback device, so
// that no packet leaves the node if it is not translated.
func (p *Probe) connect(ctx context.Context, family service.Family) error {
	dialer := net.Dialer{Timeout: timeout, KeepAlive: -1, Control: func(_, _ string, raw syscall.RawConn) (err error) {
		failed := raw.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), "lo") })
		return cmp.Or(failed, err)
	}}
	dialer.SetMultipathTCP(false)
	conn, err := dialer.DialContext(ctx, "tcp", addresses[family].String())
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.(*net.TCPConn).SetLinger(0) // leaves no socket in TIME_WAIT
	conn.SetDeadline(time.Now().Add(timeout))
	got := make([]byte, len(p.token))
	if _, err := io.ReadFull(conn, got); err != nil {
		return err
	}
	if string(got) != string(p.token) {
		return errors.New("another program answered")
	}
	return nil
}

// note records the result of a connection, and logs changes.
func (p *Probe) note(ctx context.Context, family service.Family, err error) {
	if ctx.Err() != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.failures[family]
	if err == nil {
		p.failures[family] = 0
		if before >= fall {
			p.log.Info("the self-probe succeeds again", "family", family)
		}
		return
	}
	p.errors[family] = err
	if p.failures[family] = before + 1; p.failures[family] == fall {
		condition.SelfProbeFailed.Log(p.log, "the self-probe fails: sockets of this node may not reach Services", "family", family, "error", err)
	}
}

// Conditions returns the families in which the last connections failed.
func (p *Probe) Conditions() (all condition.List) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, family := range service.Families {
		if n := p.failures[family]; n >= fall {
			all = append(all, condition.SelfProbeFailed.New("%d connections in a row to the agent's own Service failed over %s: %v", n, family, p.errors[family]).At(family.String()))
		}
	}
	return all
}
