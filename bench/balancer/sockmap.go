// SPDX-License-Identifier: Apache-2.0

package balancer

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/lab"
)

//go:generate go tool bpf2go -target bpfel -cc $BPF_CLANG -strip $BPF_STRIP -cflags $BPF_CFLAGS -no-global-types -type sockmap_counters Sockmap sockmap.bpf.c

// A sockmapBalancer accepts connections on a host, opens one to a backend for each, and leaves the traffic
// between the two to a program of type sk_skb (bench/balancer/sockmap.bpf.c): it never reads or writes a
// connection. One thread, IPv4. A client that closes before its connection is in the map is dropped.
type sockmapBalancer struct {
	objects  SockmapObjects
	backends []unix.SockaddrInet4 // in turn
	next     int

	listener, epoll, stop int // stop is an eventfd
	done                  chan error
	open                  map[int]*sockmapEnd
	draining              map[*sockmapEnd]bool // ended, but not forwarded completely
}

// A sockmapEnd is one of two joined connections.
type sockmapEnd struct {
	fd     int
	peer   *sockmapEnd
	handed bool // it has ended, and its peer has forwarded all of it and a FIN
}

// drainEvery is how often to check whether the last bytes were forwarded: the kernel does that in the
// background, without an event.
const drainEvery = 1 // ms

// startSockmap starts one that listens on a port of a host.
func startSockmap(on *lab.Host, port uint16, backends ...netip.AddrPort) (b *sockmapBalancer, err error) {
	b = &sockmapBalancer{listener: -1, epoll: -1, stop: -1, done: make(chan error, 1),
		open: map[int]*sockmapEnd{}, draining: map[*sockmapEnd]bool{}}
	for _, a := range backends {
		b.backends = append(b.backends, unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()})
	}
	defer func() {
		if err != nil {
			b.release()
		}
	}()
	if err := LoadSockmapObjects(&b.objects, nil); err != nil {
		return nil, err
	}
	// Not a link: Linux supports those for such maps from 6.10 on.
	err = link.RawAttachProgram(link.RawAttachProgramOptions{
		Target: b.objects.SockmapPeers.FD(), Program: b.objects.SockmapRelay, Attach: ebpf.AttachSkSKBStreamVerdict})
	if err != nil {
		return nil, fmt.Errorf("attach to the map of sockets: %w", err)
	}
	ready := make(chan struct{})
	go func() {
		b.done <- on.Do(func() error {
			if err := b.listen(port); err != nil {
				return err
			}
			close(ready)
			return b.serve()
		})
	}()
	select {
	case <-ready:
		return b, nil
	case err := <-b.done:
		return nil, err
	}
}

func (b *sockmapBalancer) listen(port uint16) (err error) {
	if b.listener, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
		return os.NewSyscallError("socket", err)
	}
	if err := unix.SetsockoptInt(b.listener, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	if err := unix.Bind(b.listener, &unix.SockaddrInet4{Port: int(port)}); err != nil {
		return os.NewSyscallError("bind", err)
	}
	if err := unix.Listen(b.listener, unix.SOMAXCONN); err != nil {
		return os.NewSyscallError("listen", err)
	}
	if b.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	if b.stop, err = unix.Eventfd(0, unix.EFD_CLOEXEC); err != nil {
		return os.NewSyscallError("eventfd", err)
	}
	return errors.Join(b.watch(b.listener, unix.EPOLLIN), b.watch(b.stop, unix.EPOLLIN))
}

func (b *sockmapBalancer) watch(fd int, events uint32) error {
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(b.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)}))
}

func (b *sockmapBalancer) serve() error {
	events := make([]unix.EpollEvent, 256)
	for {
		timeout := -1
		if len(b.draining) > 0 {
			timeout = drainEvery
		}
		n, err := unix.EpollWait(b.epoll, events, timeout)
		if err != nil && err != unix.EINTR {
			return os.NewSyscallError("epoll_wait", err)
		}
		for _, event := range events[:max(n, 0)] {
			switch fd := int(event.Fd); fd {
			case b.stop:
				return nil
			case b.listener:
				if err := b.accept(); err != nil {
					return err
				}
			default:
				b.ended(b.open[fd], event.Events)
			}
		}
		for e := range b.draining {
			b.forwardFIN(e)
		}
	}
}

// accept accepts one connection; epoll reports the remaining ones.
func (b *sockmapBalancer) accept() error {
	client, _, err := unix.Accept4(b.listener, unix.SOCK_CLOEXEC)
	switch err {
	case nil:
	case unix.EAGAIN, unix.ECONNABORTED, unix.EINTR:
		return nil
	default:
		return os.NewSyscallError("accept", err)
	}
	backend, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	to := &b.backends[b.next%len(b.backends)]
	b.next++
	end := &sockmapEnd{fd: client}
	end.peer = &sockmapEnd{fd: backend, peer: end}
	b.open[client], b.open[backend] = end, end.peer
	err = unix.Connect(backend, to)
	if err == nil {
		err = b.join(client, backend)
	}
	if err != nil { // left to the client, which may be gone
		b.end(end)
	}
	return nil
}

// join hands two connections to the program. The backend's is in the map before anything can be forwarded to
// it; HTTP servers send only replies.
func (b *sockmapBalancer) join(client, backend int) error {
	for _, pair := range [][2]int{{client, backend}, {backend, client}} {
		cookie, err := unix.GetsockoptUint64(pair[0], unix.SOL_SOCKET, unix.SO_COOKIE)
		if err != nil {
			return err
		}
		if err := b.objects.SockmapPeers.Put(cookie, uint64(pair[1])); err != nil {
			return err
		}
	}
	for _, fd := range []int{client, backend} {
		// Earlier data is in the socket's queue, unread. This call makes the kernel signal that there
		// is data (tcp_set_rcvlowat), and the program gets it.
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVLOWAT, 1); err != nil {
			return err
		}
		// Only this: EPOLLIN would wake this thread with each segment.
		if err := b.watch(fd, unix.EPOLLRDHUP|unix.EPOLLET); err != nil {
			return err
		}
	}
	return nil
}

// ended handles the end of a connection's data, or its failure. It is nil if the event is older than the
// connection's end.
func (b *sockmapBalancer) ended(e *sockmapEnd, events uint32) {
	switch {
	case e == nil:
	case events&unix.EPOLLERR != 0:
		b.end(e)
	case !e.handed:
		b.draining[e] = true
	}
}

// forwardFIN forwards a FIN after the last byte, and ends connections with a FIN on both sides. A FIN or the
// end of a connection could overtake data between the two.
func (b *sockmapBalancer) forwardFIN(e *sockmapEnd) {
	in, err := unix.GetsockoptTCPInfo(e.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		b.end(e)
		return
	}
	out, err := unix.GetsockoptTCPInfo(e.peer.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		b.end(e)
		return
	}
	const fin = 1 // counts as a byte received
	if out.Bytes_sent-out.Bytes_retrans+uint64(out.Notsent_bytes)+fin < in.Bytes_received {
		return
	}
	delete(b.draining, e)
	e.handed = true
	if err := unix.Shutdown(e.peer.fd, unix.SHUT_WR); err != nil || e.peer.handed {
		b.end(e)
	}
}

// end closes both connections of a pair.
func (b *sockmapBalancer) end(e *sockmapEnd) {
	for _, e := range []*sockmapEnd{e, e.peer} {
		delete(b.open, e.fd)
		delete(b.draining, e)
		unix.Close(e.fd)
	}
}

// sockmapCounters are what the program has forwarded, and what it could not.
type sockmapCounters = SockmapSockmapCounters

// counters is the sum over all CPUs.
func (b *sockmapBalancer) counters() (sum sockmapCounters, err error) {
	var all []sockmapCounters
	if err := b.objects.SockmapCounts.Lookup(uint32(0), &all); err != nil {
		return sum, err
	}
	for _, c := range all {
		sum = sockmapCounters{Segments: sum.Segments + c.Segments, Bytes: sum.Bytes + c.Bytes, Lost: sum.Lost + c.Lost}
	}
	return sum, nil
}

// close ends the balancer, and its connections.
func (b *sockmapBalancer) close() error {
	one := [8]byte{1}
	if _, err := unix.Write(b.stop, one[:]); err != nil {
		return os.NewSyscallError("write", err)
	}
	err := <-b.done
	b.release()
	return err
}

func (b *sockmapBalancer) release() {
	for fd := range b.open {
		unix.Close(fd)
	}
	for _, fd := range []int{b.listener, b.epoll, b.stop} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	b.objects.Close()
}
