// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node/netns"
	"beeline.io/beeline/internal/node/podcgroup"
)

// adopt adds the proxy's sockets that listened before the programs were attached. The programs add the others.
//
// pidfd_getfd(2) needs Linux 5.6 and CAP_SYS_PTRACE. An iterator of the kernel would need neither, but before Linux 6.5
// it holds a lock that adding a socket takes.
func (s *Shortcut) adopt(p *Pod, namespace *netns.Namespace) error {
	known := slices.Concat(s.datapath.ListenersOf(p.NetNSCookie, false), s.datapath.ListenersOf(p.NetNSCookie, true))
	return p.eachListener(namespace, func(fd int, id uint64, port uint16) error {
		if slices.Contains(known, id) {
			return nil
		}
		known = append(known, id)
		return s.datapath.AddListener(p.NetNSCookie, port == s.config.options.OutboundPort, fd)
	}, s.config.options.InboundPort, s.config.options.OutboundPort)
}

// eachListener calls f with a copy of each socket of the pod's processes that listens at one of these ports.
func (p *Pod) eachListener(namespace *netns.Namespace, f func(fd int, id uint64, port uint16) error, ports ...uint16) error {
	listening, err := listeningIn(namespace)
	if err != nil {
		return err
	}
	var inodes []uint32
	for _, port := range ports {
		for _, socket := range listening[port] {
			inodes = append(inodes, socket.Inode)
		}
	}
	if len(inodes) == 0 {
		return nil
	}
	pids, err := podcgroup.Processes(p.CgroupDirectory)
	if err != nil {
		return err
	}
	for _, d := range descriptorsOf(p.proxyFirst(pids), inodes...) {
		err := d.open(func(fd int) error {
			id, port, err := listener(fd)
			if err != nil || !slices.Contains(ports, port) {
				return err
			}
			return f(fd, id, port)
		})
		if err != nil {
			return fmt.Errorf("process %s: %w", d.pid, err)
		}
	}
	return nil
}

// open calls f with a copy of the descriptor, unless it is closed by now.
func (d *descriptor) open(f func(fd int) error) error {
	number, err := strconv.Atoi(d.pid)
	if err != nil {
		return err
	}
	process, err := unix.PidfdOpen(number, 0)
	if err != nil {
		return unlessGone(os.NewSyscallError("pidfd_open", err))
	}
	defer unix.Close(process)
	fd, err := unix.PidfdGetfd(process, d.fd, 0)
	if errors.Is(err, unix.EBADF) {
		return nil
	}
	if err != nil {
		return unlessGone(os.NewSyscallError("pidfd_getfd (needs CAP_SYS_PTRACE)", err))
	}
	defer unix.Close(fd)
	return f(fd)
}

// unlessGone returns nil if a process has ended.
func unlessGone(err error) error {
	if errors.Is(err, unix.ESRCH) || errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// listener returns the cookie and the port of a TCP socket that listens; port 0 for any other.
func listener(fd int) (id uint64, port uint16, err error) {
	listens, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	if err != nil || listens == 0 {
		return 0, 0, nil
	}
	if protocol, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL); err != nil || protocol != unix.IPPROTO_TCP {
		return 0, 0, nil
	}
	id, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
	return id, localOf(fd).Port(), err
}
