// SPDX-License-Identifier: Apache-2.0

package sockgc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/node/netns"
)

// A namespace is scanned until nothing is found, because a scan that terminates sockets may miss others.
// maxPasses limits scans, idlePasses scans that terminate no socket.
const (
	maxPasses  = 1000
	idlePasses = 3
)

var errSocketsRemain = errors.New("sockets of removed backends remain after several attempts to end them")

// passLimit decides whether another scan follows one that terminated this many sockets.
type passLimit struct{ passes, idle int }

func (a *passLimit) after(ended int) bool {
	a.passes++
	if ended == 0 {
		a.idle++
	}
	return a.passes < maxPasses && a.idle < idlePasses
}

// maxAbortsPerPass is the maximum number of TCP sockets that one scan terminates. They fit into the BPF table.
const maxAbortsPerPass = 4096

// A pass is one visit to all network namespaces for one protocol. UDP and TCP have separate passes, so that UDP
// does not wait for the more numerous TCP sockets.
type pass struct {
	collector  *Collector
	now        time.Time
	protocol   uint8
	namespaces int
	unreadable int // number of processes
	ended      int
	left       map[bpf.Connection]bool // TCP connections whose drain timeout has not passed
	errs       []error
}

// run visits every namespace, even if one fails.
func (s *pass) run(ctx context.Context) {
	for ns, err := range s.collector.namespaces() {
		if ctx.Err() != nil {
			return
		}
		var unreadable *netns.UnreadableError
		if errors.As(err, &unreadable) {
			s.unreadable = unreadable.Processes // a retry would not help
			continue
		}
		if err != nil {
			s.errs = append(s.errs, err)
			continue
		}
		s.namespaces++
		if err := ns.Do(s.visit); err != nil && !errors.Is(err, netns.ErrVanished) {
			s.errs = append(s.errs, fmt.Errorf("network namespace %d: %w", ns.Inode, err))
		}
	}
	if s.protocol == unix.IPPROTO_TCP {
		s.collector.mu.Lock()
		s.collector.drain.keep(s.left, len(s.errs) == 0, s.now)
		s.collector.mu.Unlock()
	}
}

// visit terminates stale sockets of the calling thread's namespace.
func (s *pass) visit() error {
	if s.protocol == unix.IPPROTO_TCP {
		return s.tcp()
	}
	return s.udp()
}

func (s *pass) udp() error {
	for a := (passLimit{}); ; {
		found, err := s.collector.finder.UDP()
		ended := len(found)
		if s.collector.method == Netlink {
			var endErr error
			ended, endErr = s.collector.end(unix.IPPROTO_UDP, found)
			err = errors.Join(err, endErr)
		}
		s.ended += ended
		s.report(found)
		if err != nil || len(found) == 0 {
			return err
		}
		if !a.after(ended) {
			return errSocketsRemain
		}
	}
}

// tcp terminates the connections whose drain timeout has passed.
func (s *pass) tcp() error {
	for a := (passLimit{}); ; {
		found, err := s.collector.finder.TCP()
		if err != nil {
			return err
		}
		over := s.timeOver(found)
		if len(over) == 0 {
			return nil
		}
		ended, err := s.endTCP(over)
		s.ended += ended
		s.report(over)
		if err != nil {
			return err
		}
		if !a.after(ended) {
			return errSocketsRemain
		}
	}
}

// timeOver records the connections found, and returns those whose drain timeout has passed.
func (s *pass) timeOver(found []bpf.StaleSocket) (over []bpf.StaleSocket) {
	s.collector.mu.Lock()
	defer s.collector.mu.Unlock()
	for i := range found {
		if c := found[i].Connection(); s.collector.drain.found(c, s.now) {
			over = append(over, found[i])
		} else {
			s.left[c] = true
		}
	}
	return over
}

func (s *pass) endTCP(over []bpf.StaleSocket) (ended int, err error) {
	if s.collector.method == Netlink {
		return s.collector.end(unix.IPPROTO_TCP, over)
	}
	for batch := range slices.Chunk(over, maxAbortsPerPass) {
		cookies := make([]uint64, len(batch))
		for i := range batch {
			cookies[i] = batch[i].Cookie
		}
		found, err := s.collector.finder.TCP(cookies...)
		for i := range found {
			ended += int(found[i].Destroyed)
		}
		if err != nil {
			return ended, err
		}
	}
	return ended, nil
}

func (s *pass) report(sockets []bpf.StaleSocket) {
	for i := range sockets {
		c := sockets[i].Connection()
		s.collector.log.Debug("ending a socket whose backend is out of service",
			"protocol", c.Protocol, "local", sockets[i].LocalAddr(), "service", c.Service, "backend", c.Backend)
	}
}
