// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// adopt adds the proxy's sockets that listened before the programs were attached. The programs add the others.
//
// pidfd_getfd(2) needs Linux 5.6 and CAP_SYS_PTRACE. An iterator of the kernel would need neither, but before Linux 6.5
// it holds a lock that adding a socket takes.
func (s *Shortcut) adopt(directory string, cookie uint64) error {
	pids, err := Processes(directory)
	if err != nil {
		return err
	}
	known := s.datapath.MeshListenersOf(cookie)
	for _, pid := range pids {
		err := eachSocket(pid, func(fd int) error {
			id, err := s.listener(fd)
			if err != nil || id == 0 || slices.Contains(known, id) {
				return err
			}
			known = append(known, id)
			return s.datapath.AddMeshListener(cookie, fd)
		})
		if err != nil {
			return fmt.Errorf("process %s: %w", pid, err)
		}
	}
	return nil
}

// eachSocket calls f with a copy of each socket of a process.
func eachSocket(pid string, f func(fd int) error) error {
	number, err := strconv.Atoi(pid)
	if err != nil {
		return err
	}
	process, err := unix.PidfdOpen(number, 0)
	if err != nil {
		return unlessGone(os.NewSyscallError("pidfd_open", err))
	}
	defer unix.Close(process)
	entries, err := os.ReadDir("/proc/" + pid + "/fd")
	if err != nil {
		return unlessGone(err)
	}
	for _, e := range entries {
		name, err := os.Readlink("/proc/" + pid + "/fd/" + e.Name())
		if err != nil || !strings.HasPrefix(name, "socket:") {
			continue // closed meanwhile, or no socket
		}
		their, _ := strconv.Atoi(e.Name())
		fd, err := unix.PidfdGetfd(process, their, 0)
		if errors.Is(err, unix.EBADF) {
			continue
		}
		if err != nil {
			return unlessGone(os.NewSyscallError("pidfd_getfd (needs CAP_SYS_PTRACE)", err))
		}
		err = f(fd)
		unix.Close(fd)
		if err != nil {
			return err
		}
	}
	return nil
}

// unlessGone returns nil if a process has ended.
func unlessGone(err error) error {
	if errors.Is(err, unix.ESRCH) || errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// listener returns the cookie of a TCP socket that listens for inbound connections; 0 for any other.
func (s *Shortcut) listener(fd int) (uint64, error) {
	listens, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	if err != nil || listens == 0 {
		return 0, nil
	}
	if protocol, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL); err != nil || protocol != unix.IPPROTO_TCP {
		return 0, nil
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return 0, os.NewSyscallError("getsockname", err)
	}
	port := 0
	switch a := name.(type) {
	case *unix.SockaddrInet4:
		port = a.Port
	case *unix.SockaddrInet6:
		port = a.Port
	}
	if port != int(s.config.InboundPort) {
		return 0, nil
	}
	return unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
}
