// SPDX-License-Identifier: Apache-2.0

package terminate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/netns"
)

// A namespace is gone over until nothing is found any more: a pass that ends
// sockets may miss others. passes bounds it, and idlePasses those that end none.
const (
	passes     = 1000
	idlePasses = 3
)

var errStubborn = errors.New("sockets whose backend serves no more are there after several attempts to end them")

// again says whether there is to be another pass after one that ended so many.
type again struct{ passes, idle int }

func (a *again) after(ended int) bool {
	a.passes++
	if ended == 0 {
		a.idle++
	}
	return a.passes < passes && a.idle < idlePasses
}

// doomedAtOnce is how many TCP sockets one pass ends: what surely fits into the
// table.
const doomedAtOnce = 4096

// A sweep is one visit to all network namespaces, for one protocol: UDP does not
// wait for TCP, of which there is more to look through.
type sweep struct {
	job        *Job
	now        time.Time
	protocol   uint8
	namespaces int
	unreadable int // processes
	ended      int
	left       map[datapath.Connection]bool // of TCP, that wait for their time
	errs       []error
}

// run visits every namespace. An error in one does not keep it from the others.
func (s *sweep) run(ctx context.Context) {
	for ns, err := range s.job.namespaces() {
		if ctx.Err() != nil {
			return
		}
		var unreadable *netns.UnreadableError
		if errors.As(err, &unreadable) {
			s.unreadable = unreadable.Processes // trying again would not help
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
		s.job.mu.Lock()
		s.job.drain.keep(s.left, len(s.errs) == 0, s.now)
		s.job.mu.Unlock()
	}
}

// visit ends what is to be ended in the calling thread's namespace.
func (s *sweep) visit() error {
	if s.protocol == unix.IPPROTO_TCP {
		return s.tcp()
	}
	return s.udp()
}

func (s *sweep) udp() error {
	for a := (again{}); ; {
		found, err := s.job.finder.UDP()
		ended := len(found)
		if s.job.method == Netlink {
			var endErr error
			ended, endErr = s.job.end(unix.IPPROTO_UDP, found)
			err = errors.Join(err, endErr)
		}
		s.ended += ended
		s.tell(found)
		if err != nil || len(found) == 0 {
			return err
		}
		if !a.after(ended) {
			return errStubborn
		}
	}
}

// tcp ends the connections that have had their time.
func (s *sweep) tcp() error {
	for a := (again{}); ; {
		found, err := s.job.finder.TCP()
		if err != nil {
			return err
		}
		over := s.timeOver(found)
		if len(over) == 0 {
			return nil
		}
		ended, err := s.endTCP(over)
		s.ended += ended
		s.tell(over)
		if err != nil {
			return err
		}
		if !a.after(ended) {
			return errStubborn
		}
	}
}

// timeOver notes what was found, and picks the connections that have had their
// time.
func (s *sweep) timeOver(found []datapath.StaleSocket) (over []datapath.StaleSocket) {
	s.job.mu.Lock()
	defer s.job.mu.Unlock()
	for i := range found {
		if c := found[i].Connection(); s.job.drain.found(c, s.now) {
			over = append(over, found[i])
		} else {
			s.left[c] = true
		}
	}
	return over
}

func (s *sweep) endTCP(over []datapath.StaleSocket) (ended int, err error) {
	if s.job.method == Netlink {
		return s.job.end(unix.IPPROTO_TCP, over)
	}
	for batch := range slices.Chunk(over, doomedAtOnce) {
		cookies := make([]uint64, len(batch))
		for i := range batch {
			cookies[i] = batch[i].Cookie
		}
		found, err := s.job.finder.TCP(cookies...)
		for i := range found {
			ended += int(found[i].Ended)
		}
		if err != nil {
			return ended, err
		}
	}
	return ended, nil
}

func (s *sweep) tell(sockets []datapath.StaleSocket) {
	for i := range sockets {
		c := sockets[i].Connection()
		s.job.log.Debug("ending a socket whose backend serves no more",
			"protocol", c.Protocol, "local", sockets[i].LocalAddr(), "service", c.Service, "backend", c.Backend)
	}
}
