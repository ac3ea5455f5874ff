// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"cmp"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// LostMost is how many datagrams a client retransmits before it gives up: the lab's devices lose none, so more
// are a fault.
const LostMost = 5

// lostAfter is the default of ClientConfig.LostAfter. It is long, because a busy machine delays datagrams that
// are not lost, and a pause delays all sockets.
const lostAfter = 30 * time.Second

// datagrams are UDP sockets of a client, each with one request at a time.
type datagrams struct {
	*client
	lostAfter time.Duration // without an answer
	asked     []question
	waiting   int // sockets without an answer
	now       time.Time
	looked    time.Time // for lost datagrams
	from      sockaddr
}

// question is a socket's latest request. The reply has its number: a reply with another number belongs to a
// request that was retransmitted.
type question struct {
	fd      int
	number  [1]byte
	begun   time.Time
	sent    time.Time // for the last time
	waiting bool
	left    int // requests of the operation, with this one
}

func newDatagrams(c *client) *datagrams {
	return &datagrams{client: c, lostAfter: cmp.Or(c.LostAfter, lostAfter), asked: make([]question, c.Connections), from: sockaddr{family: c.target.family}}
}

// loop ends when all replies have arrived, so that the hooks' counters are complete.
func (d *datagrams) loop() error {
	for i := range d.asked {
		if err := d.open(i); err != nil {
			return err
		}
	}
	d.meter.window.warmUp(d.Warmup, d.Measure, d.Processes)
	d.now = time.Now()
	d.looked = d.now
	for i := range d.asked {
		if err := d.ask(&d.asked[i]); err != nil {
			return err
		}
	}
	for d.waiting > 0 {
		n, errno := epollWait(d.epoll, d.events, int(d.lostAfter.Milliseconds()))
		if errno != 0 {
			return os.NewSyscallError("epoll_wait", errno)
		}
		for _, event := range d.events[:n] {
			if err := d.ready(int(event.Fd)); err != nil {
				return err
			}
		}
		if n == 0 {
			d.now = time.Now()
		}
		if err := d.askAgain(); err != nil {
			return err
		}
	}
	return nil
}

func (d *datagrams) open(i int) error {
	fd, errno := socket(d.target.family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
	if errno != 0 {
		return os.NewSyscallError("socket", errno)
	}
	d.asked[i].fd = fd
	if d.Mode != UDPUnconnected {
		d.result.Connected++
		if errno := connect(fd, d.target); errno != 0 {
			return fmt.Errorf("connect to %s: %w", d.Target, errno)
		}
	}
	return os.NewSyscallError("epoll_ctl", errnoOrNil(epollAdd(d.epoll, fd, unix.EPOLLIN|unix.EPOLLET, int32(i))))
}

func (d *datagrams) ask(q *question) error {
	q.number[0]++
	if q.left == 0 {
		q.begun, q.left = d.now, max(1, d.Requests)
	}
	q.waiting = true
	d.waiting++
	return d.send(q)
}

func (d *datagrams) send(q *question) error {
	q.sent = d.now
	d.result.Sent++
	var errno unix.Errno
	if d.Mode != UDPUnconnected {
		_, errno = send(q.fd, q.number[:])
	} else {
		errno = sendTo(q.fd, q.number[:], d.target)
	}
	if errno != 0 {
		return fmt.Errorf("datagram to %s: %w", d.Target, errno)
	}
	return nil
}

// ready handles a socket after an event of epoll. Edge-triggered, so it reads until there is nothing more, or
// the reply it waits for.
func (d *datagrams) ready(i int) error {
	q := &d.asked[i]
	for q.waiting {
		number, errno := d.receive(q.fd)
		if errno == unix.EAGAIN {
			return nil
		}
		if errno != 0 {
			return fmt.Errorf("answer from %s: %w", d.Target, errno)
		}
		d.result.Received++
		if d.Mode == UDPUnconnected && !d.from.is(d.target) {
			return fmt.Errorf("the request was sent to %s, but %s replied", d.Target, d.from.addrPort())
		}
		q.waiting = number != q.number[0]
	}
	d.waiting--
	d.now = time.Now()
	if q.left--; q.left == 0 {
		d.meter.note(q.begun, d.now)
	}
	if d.meter.window.ended {
		return nil
	}
	if q.left == 0 && d.Mode == UDPFlows {
		closeFD(q.fd)
		if err := d.open(i); err != nil {
			return err
		}
	}
	return d.ask(q)
}

func (d *datagrams) receive(fd int) (number byte, errno unix.Errno) {
	var b [1]byte
	if d.Mode != UDPUnconnected {
		_, errno = receive(fd, b[:])
	} else {
		_, errno = receiveFrom(fd, b[:], &d.from)
	}
	return b[0], errno
}

// askAgain retransmits what has waited too long.
func (d *datagrams) askAgain() error {
	if d.now.Sub(d.looked) < d.lostAfter/2 {
		return nil
	}
	d.looked = d.now
	for i := range d.asked {
		q := &d.asked[i]
		if !q.waiting || d.now.Sub(q.sent) < d.lostAfter {
			continue
		}
		if d.result.Resent == LostMost {
			return fmt.Errorf("%s has not answered more than %d datagrams for %s each", d.Target, LostMost, d.lostAfter)
		}
		d.result.Resent++
		if err := d.send(q); err != nil {
			return err
		}
	}
	return nil
}
