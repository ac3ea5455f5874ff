// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node/netns"
)

// namespaceOf opens the network namespace of the pod of a cgroup; nil if it has no process yet. Processes in the
// agent's do not count beside others: helpers of the container runtime.
//
// Any application can make a user namespace, and in that a network namespace. The pod's is older, and belongs to a user
// namespace further up: the agent's or, with hostUsers: false, one below it.
func namespaceOf(directory string) (*netns.Namespace, error) {
	own, err := netns.Current()
	if err != nil {
		return nil, err
	}
	defer own.Close()
	pids, err := Processes(directory)
	all, e := byNamespace(pids)
	if e != nil {
		return nil, e
	}
	_, ofNode := all[own.Inode]
	delete(all, own.Inode)
	if len(all) == 0 && ofNode {
		return nil, fmt.Errorf("the pod of %s is in the node's network namespace: all connections to the node would go to its proxy", directory)
	}
	var best *candidate
	for inode, of := range all {
		c, err := candidateOf(inode, of, len(all) > 1)
		switch {
		case err != nil:
			best.close()
			return nil, err
		case best == nil || c != nil && c.before(best):
			best.close()
			best = c
		default:
			c.close()
		}
	}
	if best == nil {
		return nil, err
	}
	return best.namespace, nil
}

// byNamespace sorts processes by the inodes of their network namespaces.
func byNamespace(pids []string) (map[uint64][]string, error) {
	all := map[uint64][]string{}
	for _, pid := range pids {
		var st unix.Stat_t
		path := "/proc/" + pid + "/ns/net"
		if err := unix.Stat(path, &st); err == nil {
			all[st.Ino] = append(all[st.Ino], pid)
		} else if unlessGone(err) != nil {
			return nil, &os.PathError{Op: "stat", Path: path, Err: err}
		}
	}
	return all, nil
}

// A candidate is a network namespace in which processes of a pod are.
type candidate struct {
	namespace *netns.Namespace
	depth     int    // of its user namespace below the agent's
	started   uint64 // when the oldest of these processes has started, in clock ticks
	pid       int    // of that
}

// candidateOf returns nil if the processes have ended. Only with several namespaces it has more than the namespace.
func candidateOf(inode uint64, pids []string, several bool) (*candidate, error) {
	for i, pid := range pids {
		n, err := openNamespace(pid, inode)
		if err != nil {
			return nil, err
		}
		if n == nil {
			continue
		}
		c := &candidate{namespace: n}
		if several {
			c.depth = depthOf(n)
			c.started, c.pid = oldest(pids[i:])
		}
		return c, nil
	}
	return nil, nil
}

// openNamespace returns nil if a process has ended, or has another network namespace by now.
func openNamespace(pid string, inode uint64) (*netns.Namespace, error) {
	n, err := netns.Open("/proc/" + pid + "/ns/net")
	if err != nil {
		return nil, unlessVanished(err)
	}
	if n.Inode != inode {
		n.Close()
		return nil, nil
	}
	return n, nil
}

func unlessVanished(err error) error {
	if errors.Is(err, netns.ErrVanished) {
		return nil
	}
	return err
}

func (c *candidate) before(other *candidate) bool {
	return cmp.Or(cmp.Compare(c.depth, other.depth), cmp.Compare(c.started, other.started), cmp.Compare(c.pid, other.pid)) < 0
}

func (c *candidate) close() {
	if c != nil {
		c.namespace.Close()
	}
}

// depthOf returns how far below the agent's user namespace the owner of a network namespace is.
func depthOf(n *netns.Namespace) int {
	var own, st unix.Stat_t
	if unix.Stat("/proc/self/ns/user", &own) != nil {
		return math.MaxInt
	}
	fd, err := unix.IoctlRetInt(n.FD(), unix.NS_GET_USERNS)
	for depth := 0; err == nil; depth++ {
		if e := unix.Fstat(fd, &st); e != nil || st.Ino == own.Ino {
			unix.Close(fd)
			return depth
		}
		var parent int
		parent, err = unix.IoctlRetInt(fd, unix.NS_GET_PARENT)
		unix.Close(fd)
		fd = parent
	}
	return math.MaxInt // EPERM: the agent's is not above it
}

// oldest returns when the oldest of these processes has started, and its number.
func oldest(pids []string) (started uint64, pid int) {
	started = math.MaxUint64
	for _, text := range pids {
		number, err := strconv.Atoi(text)
		if at, known := startOf(text); err == nil && known && (at < started || at == started && number < pid) {
			started, pid = at, number
		}
	}
	return started, pid
}

// startOf returns when a process has started, in clock ticks since boot (proc_pid_stat(5)).
func startOf(pid string) (ticks uint64, known bool) {
	text, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return 0, false
	}
	// The name is in parentheses, and may contain them.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	const start = 22 - 3 // the first field after the name is the third
	if len(fields) <= start {
		return 0, false
	}
	ticks, err = strconv.ParseUint(fields[start], 10, 64)
	return ticks, err == nil
}
