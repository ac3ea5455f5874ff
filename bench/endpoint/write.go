// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// write is the client of a Stream, with a blocking socket.
func (c *client) write() error {
	fd, errno := socket(c.target.family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC)
	if errno != 0 {
		return os.NewSyscallError("socket", errno)
	}
	defer closeFD(fd)
	patience := unix.NsecToTimeval(stuck * int64(time.Millisecond))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &patience); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	if errno := resetOnClose(fd); errno != 0 {
		return os.NewSyscallError("setsockopt", errno)
	}
	c.result.Connected++
	if errno := connect(fd, c.target); errno != 0 {
		return fmt.Errorf("connect to %s: %w", c.Target, errno)
	}
	if _, errno := send(fd, []byte{requestStream}); errno != 0 {
		return fmt.Errorf("request to %s: %w", c.Target, errno)
	}
	bytes := make([]byte, StreamWrite)
	c.meter.window.warmUp(c.Warmup, c.Measure, c.Processes)
	for !c.meter.window.ended {
		begun := time.Now()
		n, errno := send(fd, bytes)
		if errno != 0 || n != len(bytes) {
			return fmt.Errorf("%d of %d bytes to %s: %w", n, len(bytes), c.Target, errno)
		}
		c.meter.note(begun, time.Now())
	}
	return nil
}
