// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"context"
	"errors"
	"os"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A Watcher receives the kernel's notifications of changes in a network namespace. All methods may be called from any
// goroutine.
type Watcher struct {
	file   *os.File
	socket syscall.RawConn

	mu     sync.Mutex // held while messages are received, so that they are handled in order
	buffer [nl.RECEIVE_BUFFER_SIZE]byte
	handle func(syscall.NetlinkMessage)
}

// receiveBuffer has room for the messages of hundreds of devices that come or go at once.
const receiveBuffer = 2 << 20

// Subscribe subscribes to groups of a netlink family (netlink(7)) in the network namespace of the calling thread. The
// function is called with each message, one at a time, by Receive and Run; with an empty message when some were lost.
// The data of a message are valid during the call.
func Subscribe(handle func(syscall.NetlinkMessage), family int, groups ...uint) (*Watcher, error) {
	file, socket, err := Open(receiveBuffer, family, groups...)
	if err != nil {
		return nil, err
	}
	return &Watcher{file: file, socket: socket, handle: handle}, nil
}

// Open opens a socket with a receive buffer of this size for messages of groups, as Subscribe does.
func Open(buffer, family int, groups ...uint) (file *os.File, socket syscall.RawConn, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, family)
	if err != nil {
		return nil, nil, err
	}
	file = os.NewFile(uintptr(fd), "netlink")
	// Without CAP_NET_ADMIN over the host the buffer stays small, and more messages are lost.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, buffer)
	to := unix.SockaddrNetlink{Family: unix.AF_NETLINK}
	for _, g := range groups {
		to.Groups |= 1 << (g - 1) // those that the kernel does not have are ignored
	}
	if err = unix.Bind(fd, &to); err == nil {
		socket, err = file.SyscallConn()
	}
	if err != nil {
		file.Close()
	}
	return file, socket, err
}

// Close ends the subscription.
func (w *Watcher) Close() { w.file.Close() }

// Receive handles all messages of changes that were made before the call.
func (w *Watcher) Receive() {
	_ = w.socket.Control(w.receive) // fails if the watcher is closed
}

// Run handles messages as they come, until ctx ends.
func (w *Watcher) Run(ctx context.Context) {
	stop := context.AfterFunc(ctx, w.Close)
	defer stop()
	_ = w.socket.Read(func(fd uintptr) (done bool) { // called whenever the socket is readable
		w.receive(fd)
		return false
	})
}

func (w *Watcher) receive(fd uintptr) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		n, _, err := unix.Recvfrom(int(fd), w.buffer[:], unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			return
		case err != nil: // ENOBUFS: messages did not fit
			w.handle(syscall.NetlinkMessage{})
		default:
			w.handleAll(w.buffer[:n])
		}
	}
}

func (w *Watcher) handleAll(b []byte) {
	messages, err := syscall.ParseNetlinkMessage(b)
	if err != nil {
		messages = []syscall.NetlinkMessage{{}}
	}
	for _, m := range messages {
		w.handle(m)
	}
}
