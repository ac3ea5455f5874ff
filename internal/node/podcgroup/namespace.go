// SPDX-License-Identifier: Apache-2.0

package podcgroup

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node/netns"
)

// Limits of a scan of one container. Its first processes are the first in cgroup.procs.
const (
	maxDirectories = 512 // its cgroup, and those below it
	maxProcesses   = 256
)

// errHidden means that cgroup.procs shows 0 for a process of another PID namespace.
var errHidden = errors.New("the agent does not see the pods' processes: run it in the host's PID namespace (hostPID)")

// ErrOnNode means that all processes of a pod are in a network namespace of the node: it has hostNetwork, or its
// processes have not entered its own yet.
var ErrOnNode = errors.New("the pod is in the node's network namespace")

// process is a process of a pod outside the network namespaces of the node.
type process struct {
	pid       int
	container int    // number of the container's cgroup; 0 for the pod's own
	netns     uint64 // inode
	procs     string // the cgroup.procs file that lists it
	// Only read of pods with processes in several namespaces:
	depth   int    // of the owner of the namespace below the agent's user namespace
	started uint64 // in clock ticks since boot
}

// processReader reads the state of processes from the kernel. Errors wrap fs.ErrNotExist or netns.ErrVanished if the
// process has exited.
type processReader interface {
	netns(pid int) (inode uint64, err error)
	started(pid int) (ticks uint64, err error)
	open(pid int) (*netns.Namespace, error)
	depth(*netns.Namespace) int // of its owner below the agent's user namespace
}

// Namespace opens the network namespace of the pod with this cgroup; nil if it has no process yet. Processes in a
// namespace of the node do not count: helpers of the runtime, and containers that have not entered their namespace yet.
//
// Programs in a pod may be in other namespaces, which they have created. The pod's is the one whose owner is the
// nearest to the agent's user namespace: any program can create a user namespace, and in that a network namespace. Of
// several it is the one for which most containers vote, including the pause container, each by its longest-running
// process; on a tie the one with the longest-running voter.
//
// Errors: ErrOnNode.
func Namespace(directory string) (*netns.Namespace, error) {
	host, err := hostNamespaces()
	if err != nil {
		return nil, err
	}
	return namespaceOf(directory, procfs{}, host)
}

// CookieOf returns the cookie of Namespace; 0 if the pod has no process yet.
func CookieOf(directory string) (uint64, error) {
	n, err := Namespace(directory)
	if n == nil || err != nil {
		return 0, err
	}
	defer n.Close() // do not keep the pod's namespace alive
	return n.Cookie()
}

func namespaceOf(directory string, r processReader, host []uint64) (*netns.Namespace, error) {
	c := census{reader: r, host: host}
	c.pod(directory)
	switch {
	case len(c.all) > 0:
		return openOf(elect(c.all, r), r)
	case c.err == nil && c.onNode:
		return nil, ErrOnNode
	}
	return nil, c.err
}

// A census lists the processes of a pod.
type census struct {
	reader processReader
	host   []uint64  // the namespaces of the node
	all    []process // outside of these
	onNode bool      // some are in these
	err    error
}

func (c *census) pod(directory string) {
	entries, err := os.ReadDir(directory)
	if err != nil {
		c.err = ignoreGone(err)
		return
	}
	c.container(directory, 0)
	for i, e := range entries {
		if e.IsDir() {
			c.container(filepath.Join(directory, e.Name()), 1+i)
		}
	}
}

// container adds the processes of a container, or of the pod's own cgroup.
func (c *census) container(directory string, number int) {
	asked := 0
	for read, queue := 0, []string{directory}; len(queue) > 0 && read < maxDirectories; read, queue = read+1, queue[1:] {
		file := filepath.Join(queue[0], "cgroup.procs")
		pids, err := pidsIn(file)
		c.err = cmp.Or(c.err, err)
		for _, pid := range pids {
			if asked++; asked > maxProcesses {
				return
			}
			c.process(process{pid: pid, container: number, procs: file})
		}
		if number == 0 {
			return
		}
		entries, _ := os.ReadDir(queue[0])
		for _, e := range entries {
			if e.IsDir() {
				queue = append(queue, filepath.Join(queue[0], e.Name()))
			}
		}
	}
}

func (c *census) process(p process) {
	var err error
	switch p.netns, err = c.reader.netns(p.pid); {
	case err != nil:
		c.err = cmp.Or(c.err, ignoreGone(err))
	case slices.Contains(c.host, p.netns):
		c.onNode = true
	default:
		c.all = append(c.all, p)
	}
}

// elect returns a process in the pod's namespace.
func elect(all []process, r processReader) process {
	if !slices.ContainsFunc(all, func(p process) bool { return p.netns != all[0].netns }) {
		return all[0]
	}
	rank(all, r)
	byAge := func(a, b process) int { return cmp.Or(cmp.Compare(a.started, b.started), cmp.Compare(a.pid, b.pid)) }
	voters := map[int]process{} // by container
	for _, p := range all {
		if v, voted := voters[p.container]; !voted || cmp.Or(cmp.Compare(p.depth, v.depth), byAge(p, v)) < 0 {
			voters[p.container] = p
		}
	}
	votes := map[uint64]int{}
	for _, v := range voters {
		votes[v.netns]++
	}
	return slices.MinFunc(slices.Collect(maps.Values(voters)), func(a, b process) int {
		return cmp.Or(cmp.Compare(a.depth, b.depth), cmp.Compare(votes[b.netns], votes[a.netns]), byAge(a, b))
	})
}

// rank reads what tells the namespaces of processes apart. Those of processes that have exited come last.
func rank(all []process, r processReader) {
	depths := map[uint64]int{}
	for i := range all {
		p := &all[i]
		var err error
		if p.started, err = r.started(p.pid); err != nil {
			p.started = math.MaxUint64
		}
		depth, known := depths[p.netns]
		if !known {
			depth = math.MaxInt
			if n, err := r.open(p.pid); err == nil {
				if n.Inode == p.netns {
					depth = r.depth(n)
					depths[p.netns] = depth
				}
				n.Close()
			}
		}
		p.depth = depth
	}
}

// pidsIn parses a cgroup.procs file.
func pidsIn(file string) ([]int, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, ignoreGone(err)
	}
	var pids []int
	for _, word := range strings.Fields(string(text)) {
		pid, err := strconv.Atoi(word)
		switch {
		case err != nil || pid < 0:
			return nil, fmt.Errorf("%s: %q is not a process ID", file, word)
		case pid == 0:
			return nil, errHidden
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// openOf opens the namespace in which a process was found; nil if the process has since exited or moved. It is the same
// process if it is still in its cgroup.
func openOf(p process, r processReader) (*netns.Namespace, error) {
	n, err := r.open(p.pid)
	if err != nil {
		return nil, ignoreGone(err)
	}
	pids, err := pidsIn(p.procs)
	if err != nil || n.Inode != p.netns || !slices.Contains(pids, p.pid) {
		n.Close()
		return nil, err
	}
	return n, nil
}

// ignoreGone drops errors of files that vanished meanwhile. A threaded cgroup has no list of processes
// (EOPNOTSUPP), and neither has a removed one (ENODEV).
func ignoreGone(err error) error {
	for _, gone := range []error{fs.ErrNotExist, netns.ErrVanished, unix.ESRCH, unix.ENODEV, unix.EOPNOTSUPP} {
		if errors.Is(err, gone) {
			return nil
		}
	}
	return err
}

// procfs is the processReader of /proc.
type procfs struct{}

func (procfs) netns(pid int) (inode uint64, err error) {
	path := "/proc/" + strconv.Itoa(pid) + "/ns/net"
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return st.Ino, nil
}

func (procfs) started(pid int) (ticks uint64, err error) {
	return startTime("/proc/" + strconv.Itoa(pid) + "/stat")
}

func (procfs) open(pid int) (*netns.Namespace, error) {
	return netns.Open("/proc/" + strconv.Itoa(pid) + "/ns/net")
}

func (procfs) depth(n *netns.Namespace) int {
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

// hostNamespaces returns the inodes of the agent's namespace and of process 1's.
func hostNamespaces() ([]uint64, error) {
	own, err := netns.Current()
	if err != nil {
		return nil, err
	}
	defer own.Close()
	host := []uint64{own.Inode}
	if first, err := (procfs{}).netns(1); err == nil {
		host = append(host, first)
	}
	return host, nil
}

// startTime returns field 22 of proc_pid_stat(5). Field 2 is a name in parentheses that may contain any
// character.
func startTime(file string) (uint64, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 20 {
		return 0, fmt.Errorf("%s has %d fields after the name", file, len(fields))
	}
	return strconv.ParseUint(fields[19], 10, 64)
}
