// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// A socket belongs for life to the namespace and the cgroup of the process that creates it, whoever uses it. So
// one small process per host creates sockets on request and passes them; the caller does the rest, connect and
// getpeername included, on the host's socket. Only listen is called by that process: BPF programs there see which
// process listens, and the caller connects from the same hosts.

// socketHelper is the caller's end of a host's socket process.
type socketHelper struct {
	mu      sync.Mutex
	conn    *os.File      // sequenced packets to the process, nil if none runs
	cmd     *Cmd          // the process
	stopped chan struct{} // closed when cmd has been waited for
}

// Sizes of the messages on the socket pair: a request is family, type and protocol, an answer an errno and, if
// that is 0, the socket. A request with a socket is to listen at it. All are 32 bits in the byte order of the machine.
const (
	requestSize = 12
	answerSize  = 4
)

// Socket creates a socket that belongs to the host, see socket(2). It is close-on-exec; kind may include
// SOCK_NONBLOCK. The caller closes it. If the kernel refuses the socket, the error wraps its errno.
func (h *Host) Socket(family, kind, protocol int) (fd int, err error) {
	h.helper.mu.Lock()
	defer h.helper.mu.Unlock()
	if h.helper.conn == nil {
		if err := h.startSocketHelper(); err != nil {
			return -1, fmt.Errorf("host %s: starting its socket process: %w", h.Name, err)
		}
	}
	fd, err = requestSocket(int(h.helper.conn.Fd()), "socket", nil, family, kind, protocol)
	if err != nil {
		return -1, fmt.Errorf("host %s: %w", h.Name, err)
	}
	return fd, nil
}

// listen has the host's socket process listen at a socket of the host, which has created it.
func (h *Host) listen(fd int) error {
	h.helper.mu.Lock()
	defer h.helper.mu.Unlock()
	if h.helper.conn == nil {
		return fmt.Errorf("host %s: its socket process has ended", h.Name)
	}
	_, err := requestSocket(int(h.helper.conn.Fd()), "listen", unix.UnixRights(fd), 0, 0, 0)
	return err
}

// startSocketHelper requires the helper's lock.
func (h *Host) startSocketHelper() error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	mine, theirs := os.NewFile(uintptr(pair[0]), "socket helper"), os.NewFile(uintptr(pair[1]), "socket helper")
	defer theirs.Close()
	cmd, err := h.helperCommand(true, helperSocket)
	if err == nil {
		cmd.Stderr = os.Stderr
		cmd.ExtraFiles = []*os.File{theirs} // helperFD
		err = cmd.Start()
	}
	if err != nil {
		mine.Close()
		return err
	}
	stopped := make(chan struct{})
	go func() {
		cmd.Wait()
		close(stopped)
	}()
	h.helper.conn, h.helper.cmd, h.helper.stopped = mine, cmd, stopped
	return nil
}

// StopSockets ends the process that creates the host's sockets. Existing sockets stay open; the next Socket
// starts another.
func (h *Host) StopSockets() { h.helper.stop() }

// stop ends the socket process; the next Socket starts another.
func (s *socketHelper) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil {
		return
	}
	s.conn.Close()
	s.cmd.Process.Kill()
	<-s.stopped
	s.conn = nil
}

// requestSocket returns the socket of the answer; -1 if the request has one. call is the system call.
func requestSocket(conn int, call string, rights []byte, family, kind, protocol int) (int, error) {
	request := make([]byte, 0, requestSize)
	for _, v := range []int{family, kind, protocol} {
		request = binary.NativeEndian.AppendUint32(request, uint32(v))
	}
	if err := unix.Sendmsg(conn, request, rights, nil, unix.MSG_NOSIGNAL); err != nil {
		return -1, fmt.Errorf("asking its socket process (has the lab been taken down?): %w", err)
	}
	answer, control := make([]byte, answerSize), make([]byte, unix.CmsgSpace(4))
	n, controlSize, err := recvmsg(conn, answer, control)
	if err != nil {
		return -1, fmt.Errorf("reading from its socket process: %w", err)
	}
	if n != answerSize {
		return -1, errors.New("its socket process has ended (has the lab been taken down?)")
	}
	if errno := unix.Errno(binary.NativeEndian.Uint32(answer)); errno != 0 {
		return -1, os.NewSyscallError(call, errno)
	}
	if rights != nil {
		return -1, nil
	}
	fd, err := passedSocket(control[:controlSize])
	if err != nil {
		return -1, fmt.Errorf("reading from its socket process: %w", err)
	}
	return fd, nil
}

// passedSocket returns the one socket that came with a message.
func passedSocket(control []byte) (int, error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err == nil && len(messages) != 1 {
		err = fmt.Errorf("%d control messages", len(messages))
	}
	if err != nil {
		return -1, fmt.Errorf("no socket received: %w", err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err == nil && len(fds) != 1 {
		err = fmt.Errorf("%d descriptors", len(fds))
	}
	if err != nil {
		return -1, fmt.Errorf("no socket received: %w", err)
	}
	return fds[0], nil
}

func recvmsg(fd int, data, control []byte) (n, controlSize int, err error) {
	for {
		n, controlSize, _, _, err = unix.Recvmsg(fd, data, control, unix.MSG_CMSG_CLOEXEC)
		if !errors.Is(err, unix.EINTR) {
			return n, controlSize, err
		}
	}
}

// serveSockets is the socket process: it answers requests until its parent closes the other end or exits.
func serveSockets(conn int) error {
	setProcessName(helperSocket)
	unix.CloseOnExec(conn)
	request, control := make([]byte, requestSize), make([]byte, unix.CmsgSpace(4))
	for {
		n, controlSize, err := recvmsg(conn, request, control)
		if err != nil || n == 0 {
			return err
		}
		if n != requestSize {
			return fmt.Errorf("request of %d bytes, want %d", n, requestSize)
		}
		if controlSize > 0 {
			err = serveListen(conn, control[:controlSize])
		} else {
			err = serveSocket(conn, request)
		}
		if err != nil {
			return err
		}
	}
}

func serveListen(conn int, control []byte) error {
	fd, err := passedSocket(control)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var errno unix.Errno
	if err := unix.Listen(fd, unix.SOMAXCONN); err != nil && !errors.As(err, &errno) {
		return err
	}
	return unix.Sendmsg(conn, binary.NativeEndian.AppendUint32(nil, uint32(errno)), nil, nil, unix.MSG_NOSIGNAL)
}

func serveSocket(conn int, request []byte) error {
	number := func(i int) int { return int(int32(binary.NativeEndian.Uint32(request[4*i:]))) }
	fd, err := unix.Socket(number(0), number(1)|unix.SOCK_CLOEXEC, number(2))
	var errno unix.Errno
	var rights []byte
	if err == nil {
		defer unix.Close(fd)
		rights = unix.UnixRights(fd)
	} else if !errors.As(err, &errno) {
		return err
	}
	answer := binary.NativeEndian.AppendUint32(nil, uint32(errno))
	return unix.Sendmsg(conn, answer, rights, nil, unix.MSG_NOSIGNAL)
}
