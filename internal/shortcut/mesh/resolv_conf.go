// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The pod's file is the pod's: what is read of it is bounded.
const (
	mostResolvConf  = 64 << 10 // octets
	mostNameServers = 8
	// mostTries is the number of processes whose file is tried: a container may have none.
	mostTries = 8
)

// readTime is how long the agent waits for a file before it goes on with other work: the pod's file system may be any,
// also that of a server that does not answer. mostReads is how many such files it waits for in the background.
const (
	readTime  = 200 * time.Millisecond
	mostReads = 16
)

var reads = make(chan struct{}, mostReads)

// A reading reads the name servers of a pod. Nothing can end it: the kernel may wait for ever.
type reading struct {
	listeners []uint64 // the proxy's, when it began
	waited    bool
	done      chan struct{}
	servers   []netip.Addr // and err: once done is closed
	err       error
}

func startReading(listeners []uint64, read func() ([]netip.Addr, error)) (*reading, error) {
	select {
	case reads <- struct{}{}:
	default:
		return nil, fmt.Errorf("etc/resolv.conf is not read: the file systems of %d other pods do not answer", mostReads)
	}
	r := &reading{listeners: listeners, done: make(chan struct{})}
	go func() {
		defer func() { <-reads }()
		r.servers, r.err = read()
		close(r.done)
	}()
	return r, nil
}

// ended reports whether the reading has ended. Only the first call waits.
func (r *reading) ended() bool {
	limit := readTime
	if r.waited {
		limit = 0
	}
	r.waited = true
	select {
	case <-r.done:
		return true
	case <-time.After(limit):
	}
	select { // both may be the case
	case <-r.done:
		return true
	default:
		return false
	}
}

// readServers sets the name servers of a pod whose proxy has these listeners.
func (f *facts) readServers(listeners []uint64, read func() ([]netip.Addr, error)) (err error) {
	if f.reading == nil {
		if f.reading, err = startReading(listeners, read); err != nil {
			return err
		}
	}
	r := f.reading
	if !r.ended() {
		return errors.New("the file system of etc/resolv.conf does not answer")
	}
	f.reading = nil
	if r.err == nil {
		f.servers, f.listeners = r.servers, r.listeners
	}
	return r.err
}

// nameServersOf returns the name servers of the first resolv.conf that one of these processes has.
func nameServersOf(pids []string) (servers []netip.Addr, err error) {
	for i, pid := range pids {
		if i == mostTries {
			break
		}
		text, e := readResolvConf("/proc/" + pid + "/root")
		if e == nil {
			return parseNameServers(text), nil
		}
		err = errors.Join(err, unlessGone(e))
	}
	return nil, err
}

// readResolvConf reads /etc/resolv.conf below a root directory. Links lead nowhere else (openat2(2), Linux 5.6), and
// nothing but a regular file is opened for reading: a FIFO would block, and a device may do anything. Files of procfs
// are regular, too, and /proc/kmsg blocks.
func readResolvConf(root string) ([]byte, error) {
	directory, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: root, Err: err}
	}
	defer unix.Close(directory)
	const name = "etc/resolv.conf"
	path := root + "/" + name
	found, err := unix.Openat2(directory, name, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
	if err != nil {
		return nil, &os.PathError{Op: "openat2", Path: path, Err: err}
	}
	defer unix.Close(found)
	before, err := regular(found)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	// os.File would wait for a file that it may poll.
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", found), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	text, err := readAll(fd)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if after, err := regular(found); err != nil || after.Mtim != before.Mtim || after.Size != int64(len(text)) {
		return nil, errors.Join(fmt.Errorf("%s changed while it was read", path), err)
	}
	return text, nil
}

// regular returns the attributes of a regular file.
func regular(fd int) (st unix.Stat_t, err error) {
	var system unix.Statfs_t
	if err := errors.Join(os.NewSyscallError("fstat", unix.Fstat(fd, &st)), os.NewSyscallError("fstatfs", unix.Fstatfs(fd, &system))); err != nil {
		return st, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || system.Type == unix.PROC_SUPER_MAGIC {
		err = errors.New("not a regular file")
	}
	return st, err
}

func readAll(fd int) ([]byte, error) {
	text := make([]byte, 0, mostResolvConf+1)
	for len(text) < cap(text) {
		n, err := unix.Read(fd, text[len(text):cap(text)])
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return nil, os.NewSyscallError("read", err)
		case n == 0:
			return text, nil
		}
		text = text[:len(text)+n]
	}
	return nil, fmt.Errorf("it has more than %d octets", mostResolvConf)
}

// parseNameServers returns the name servers of a resolv.conf(5), without the zone of link-local ones. It never returns
// nil.
func parseNameServers(text []byte) []netip.Addr {
	all := []netip.Addr{}
	for line := range bytes.Lines(text) {
		fields := strings.Fields(string(line))
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		if a, err := netip.ParseAddr(fields[1]); err == nil && len(all) < mostNameServers {
			all = append(all, a.Unmap().WithZone(""))
		}
	}
	return all
}
