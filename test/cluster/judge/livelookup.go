// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/lab"
)

// Lookups send datagrams that are too long, as fast as possible. Each time Beeline decides, and then the kernel
// sends nothing (EMSGSIZE): this reveals states that last only some microseconds. It does not distinguish an
// unserved ingress IP from a served one.
type Lookups struct {
	end, done chan struct{}

	// Set at the end.
	count    int
	failures [][]Sighting // of each Service
	err      error
}

// socket is a UDP socket for one question.
type socket struct {
	service int
	probe   Probe
	fd      int
	to      unix.Sockaddr
}

// tooLong is a datagram that fits into no packet of the lab.
var tooLong = make([]byte, 2000)

// StartLookups begins to send those probes to several Services that an unconnected UDP socket can send, until
// it is stopped or ctx is done or an unexpected error occurs. It omits NodePorts from a pod: with or without
// Beeline's decision the datagram is too long for the pod's device.
func StartLookups(ctx context.Context, side *Side, probes []Probe, scenarios ...*Scenario) *Lookups {
	l := &Lookups{end: make(chan struct{}), done: make(chan struct{}), failures: make([][]Sighting, len(scenarios))}
	go func() {
		defer close(l.done)
		var sockets []socket
		for i, scenario := range scenarios {
			for _, p := range probes {
				if p.Socket != "unconnected" || p.To == "nodePort" && p.From != judged {
					continue
				}
				s, err := newSocket(side.Lab.Host(p.From), p, scenario.address(p, side.Lab))
				if err != nil {
					l.err = err
					return
				}
				defer unix.Close(s.fd)
				s.service = i
				sockets = append(sockets, s)
			}
		}
		l.run(ctx, sockets)
	}()
	return l
}

func newSocket(host *lab.Host, p Probe, to netip.AddrPort) (socket, error) {
	family := unix.AF_INET
	var address unix.Sockaddr
	if to.Addr().Is4() {
		address = &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	} else {
		family, address = unix.AF_INET6, &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
	}
	fd, err := host.Socket(family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return socket{}, err
	}
	if family == unix.AF_INET {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
	} else {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO)
	}
	if err != nil {
		unix.Close(fd)
		return socket{}, os.NewSyscallError("setsockopt", err)
	}
	return socket{probe: p, fd: fd, to: address}, nil
}

func (l *Lookups) run(ctx context.Context, sockets []socket) {
	for len(sockets) > 0 {
		select {
		case <-l.end:
			return
		case <-ctx.Done():
			return // the test has ended
		default:
		}
		for _, s := range sockets {
			begin := time.Now()
			err := unix.Sendto(s.fd, tooLong, 0, s.to)
			l.count++
			if errors.Is(err, unix.EMSGSIZE) {
				continue
			}
			if err == nil && s.probe.To == "nodePort" {
				err = unix.ECONNREFUSED // sent to the node itself, by lo
			}
			result, err := lookedUp(err)
			if err != nil {
				l.err = err
				return
			}
			l.failures[s.service] = append(l.failures[s.service], Sighting{s.probe, begin, time.Now(), Observation{Result: result}})
		}
		runtime.Gosched()
	}
}

func lookedUp(err error) (result string, failure error) {
	if err == nil {
		return "", fmt.Errorf("a datagram of %d bytes was sent", len(tooLong))
	}
	return resultOf(os.NewSyscallError("sendto", err))
}

// Stop stops it, and returns the failures of each Service.
func (l *Lookups) Stop() (count int, failures [][]Sighting, err error) {
	close(l.end)
	<-l.done
	if l.err != nil {
		l.err = fmt.Errorf("lookup: %w", l.err)
	}
	return l.count, l.failures, l.err
}
