// SPDX-License-Identifier: Apache-2.0

package optout

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node/netns"
)

// Limits of a scan of one pod. The first processes of a container are the first in cgroup.procs.
const (
	maxDirectories = 512 // cgroups below the pod's
	maxProcesses   = 256 // of one container
)

// errHidden means that cgroup.procs shows 0 for a process of another PID namespace.
var errHidden = errors.New("the agent does not see the pods' processes: run it in the host's PID namespace (hostPID)")

// process is a process and its network namespace.
type process struct {
	pid     int
	netns   uint64 // inode
	started uint64 // in clock ticks since the machine started
	procs   string // the cgroup.procs file that lists it
}

// processReader reads the state of processes from the kernel.
type processReader interface {
	// process returns all fields except procs. The error wraps fs.ErrNotExist if the process has exited.
	process(pid int) (process, error)
	// cookie returns the cookie and inode of the namespace of a process.
	cookie(pid int) (cookie, inode uint64, err error)
}

// namespaceOf returns the cookie of the network namespace of the pod with this cgroup; 0 if it has no process
// yet. The longest-running process of each container, including the pause container, votes for its namespace;
// on a tie the longest-running voter decides. So a namespace that a program in the pod creates does not win.
// Processes in a namespace of the host do not vote: helpers of the runtime, and containers that have not
// entered their namespace yet.
func namespaceOf(dir string, m processReader, host []uint64) (cookie uint64, err error) {
	containers := []string{dir}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, ignoreGone(err)
	}
	for _, e := range entries {
		if e.IsDir() {
			containers = append(containers, filepath.Join(dir, e.Name()))
		}
	}
	var voters []process
	votes := map[uint64]int{}
	left := maxDirectories
	for _, c := range containers {
		first, found, e := firstProcess(c, c != dir, m, host, &left)
		if e != nil {
			err = e
		}
		if found {
			voters = append(voters, first)
			votes[first.netns]++
		}
	}
	if len(voters) == 0 {
		return 0, err
	}
	elected := slices.MinFunc(voters, func(a, b process) int {
		return cmp.Or(cmp.Compare(votes[b.netns], votes[a.netns]), older(a, b))
	})
	return cookieOf(elected, m)
}

func older(a, b process) int {
	return cmp.Or(cmp.Compare(a.started, b.started), cmp.Compare(a.pid, b.pid))
}

// firstProcess returns the longest-running process of a container outside the host's namespaces.
func firstProcess(dir string, descend bool, m processReader, host []uint64, left *int) (first process, found bool, err error) {
	looked := 0
	for queue := []string{dir}; len(queue) > 0 && *left > 0; queue = queue[1:] {
		*left--
		file := filepath.Join(queue[0], "cgroup.procs")
		pids, e := pidsIn(file)
		if e != nil {
			err = e
		}
		for _, pid := range pids {
			if looked++; looked > maxProcesses {
				return first, found, err
			}
			p, e := m.process(pid)
			if e != nil {
				err = cmp.Or(err, ignoreGone(e))
				continue
			}
			p.procs = file
			if !slices.Contains(host, p.netns) && (!found || older(p, first) < 0) {
				first, found = p, true
			}
		}
		if !descend {
			return first, found, err
		}
		entries, _ := os.ReadDir(queue[0])
		for _, e := range entries {
			if e.IsDir() {
				queue = append(queue, filepath.Join(queue[0], e.Name()))
			}
		}
	}
	return first, found, err
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

// cookieOf returns the cookie of the namespace in which a process was found; 0 if the process has since exited
// or moved. It is the same process if it is still in its cgroup.
func cookieOf(p process, m processReader) (uint64, error) {
	cookie, inode, err := m.cookie(p.pid)
	if err != nil || inode != p.netns {
		return 0, ignoreGone(err)
	}
	pids, err := pidsIn(p.procs)
	if err != nil || !slices.Contains(pids, p.pid) {
		return 0, err
	}
	return cookie, nil
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

func (procfs) process(pid int) (process, error) {
	dir := "/proc/" + strconv.Itoa(pid)
	name, err := os.Readlink(dir + "/ns/net")
	if err != nil {
		return process{}, err
	}
	number, err := netns.ParseName(name)
	if err != nil {
		return process{}, fmt.Errorf("%s/ns/net: %w", dir, err)
	}
	started, err := startTime(dir + "/stat")
	return process{pid: pid, netns: number, started: started}, err
}

func (procfs) cookie(pid int) (cookie, inode uint64, err error) {
	ns, err := netns.Open("/proc/" + strconv.Itoa(pid) + "/ns/net")
	if err != nil {
		return 0, 0, err
	}
	defer ns.Close() // do not keep the pod's namespace alive
	cookie, err = ns.Cookie()
	return cookie, ns.Inode, err
}

// hostNamespaces returns the inodes of the agent's namespace and of process 1's. Call it before any thread
// enters another namespace.
func hostNamespaces() ([]uint64, error) {
	own, err := netns.Current()
	if err != nil {
		return nil, err
	}
	defer own.Close()
	host := []uint64{own.Inode}
	if name, err := os.Readlink("/proc/1/ns/net"); err == nil {
		if number, err := netns.ParseName(name); err == nil {
			host = append(host, number)
		}
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
