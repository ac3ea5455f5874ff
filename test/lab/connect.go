// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// connect connects the non-blocking socket f. It calls connect(2) just once, so that hooks see a single call,
// as of a program.
func connect(ctx context.Context, f *os.File, e endpoint) error {
	fd := int(f.Fd())
	if e.kind == unix.SOCK_STREAM {
		if err := reportUnreachable(fd, e.family, true); err != nil {
			return err
		}
		defer reportUnreachable(fd, e.family, false)
	}
	err := unix.Connect(fd, sockaddr(e.addr, e.family))
	if errors.Is(err, unix.EINPROGRESS) {
		return awaitConnected(ctx, f)
	}
	return os.NewSyscallError("connect", err)
}

// reportUnreachable makes an ICMP error end a connection attempt at once. On veth the reply to a SYN arrives
// while connect(2) still holds the socket; the kernel then only notes the error, until the SYN's retransmission
// after a second brings the next. With the flag the error is queued, too, and wakes poll.
func reportUnreachable(fd, family int, on bool) error {
	if err := setFlag(fd, unix.IPPROTO_IP, unix.IP_RECVERR, on); err != nil || family == unix.AF_INET {
		return err
	}
	return setFlag(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVERR, on)
}

func setFlag(fd, level, option int, on bool) error {
	value := 0
	if on {
		value = 1
	}
	return os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, level, option, value))
}

// awaitConnected waits for the end of a connection attempt.
func awaitConnected(ctx context.Context, f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	if deadline, ok := ctx.Deadline(); ok {
		if err := f.SetWriteDeadline(deadline); err != nil {
			return err
		}
	}
	stop := context.AfterFunc(ctx, func() { f.SetWriteDeadline(time.Unix(1, 0)) })
	defer stop()
	var result error
	err = raw.Write(func(fd uintptr) (done bool) {
		done, result = connectResult(int(fd))
		return done
	})
	if errors.Is(err, os.ErrDeadlineExceeded) {
		if ctx.Err() == nil {
			return context.DeadlineExceeded // the socket's deadline expired first
		}
		return ctx.Err()
	}
	return errors.Join(err, result)
}

// connectResult reports whether the attempt has ended, and how.
func connectResult(fd int) (done bool, err error) {
	// Polled and not assumed: the runtime may wake a waiter for no reason.
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	if n, err := unix.Poll(poll, 0); n < 1 {
		return err != nil && !errors.Is(err, unix.EINTR), os.NewSyscallError("poll", err)
	}
	errno, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil {
		return true, os.NewSyscallError("getsockopt", err)
	}
	if errno != 0 {
		return true, os.NewSyscallError("connect", unix.Errno(errno))
	}
	return poll[0].Revents&unix.POLLOUT != 0, nil
}
