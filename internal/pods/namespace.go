// SPDX-License-Identifier: Apache-2.0

package pods

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

	"beeline.io/beeline/internal/netns"
)

// Bounds of a look at one pod. The first processes of a container come first in
// cgroup.procs.
const (
	lookDirectories = 512 // cgroups below the pod's
	lookProcesses   = 256 // of one container
)

// errHidden: cgroup.procs shows 0 for a process of another PID namespace.
var errHidden = errors.New("the agent does not see the pods' processes: run it in the host's PID namespace (hostPID)")

// process is what tells of a process in which network namespace it is.
type process struct {
	pid     int
	netns   uint64 // inode
	started uint64 // in clock ticks since the machine started
	procs   string // the file that names it
}

// machine is what a look at processes asks of the kernel.
type machine interface {
	// process reads of a process all but procs. It is an error that wraps
	// fs.ErrNotExist if the process has ended.
	process(pid int) (process, error)
	// cookie of the namespace that a process is in, and its inode.
	cookie(pid int) (cookie, inode uint64, err error)
}

// namespaceOf returns the cookie of the network namespace of a pod by its
// cgroup; 0 if it has no process yet. The first process of each container has a
// vote, the pause container's too, and of as many votes the longest-running
// process decides: what a program in the pod makes for itself is none of the
// pod's. What is in one of the host's namespaces has none: a runtime's helpers,
// and a container that has not entered yet.
func namespaceOf(dir string, m machine, host []uint64) (cookie uint64, err error) {
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
	left := lookDirectories
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

// firstProcess is the longest-running process of a container that is in none of
// the host's namespaces.
func firstProcess(dir string, descend bool, m machine, host []uint64, left *int) (first process, found bool, err error) {
	looked := 0
	for queue := []string{dir}; len(queue) > 0 && *left > 0; queue = queue[1:] {
		*left--
		file := filepath.Join(queue[0], "cgroup.procs")
		pids, e := pidsIn(file)
		if e != nil {
			err = e
		}
		for _, pid := range pids {
			if looked++; looked > lookProcesses {
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

// pidsIn reads a cgroup.procs file.
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
			return nil, fmt.Errorf("%s: %q is no process", file, word)
		case pid == 0:
			return nil, errHidden
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// cookieOf reads the cookie of the namespace that a process was seen in; 0 if
// the process has ended or moved since. That it is in its cgroup still says that
// it is the same process.
func cookieOf(p process, m machine) (uint64, error) {
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

// ignoreGone: what goes away meanwhile is no error. A cgroup that holds threads
// only has no list of processes (EOPNOTSUPP), a removed one none any more
// (ENODEV).
func ignoreGone(err error) error {
	for _, gone := range []error{fs.ErrNotExist, netns.ErrVanished, unix.ESRCH, unix.ENODEV, unix.EOPNOTSUPP} {
		if errors.Is(err, gone) {
			return nil
		}
	}
	return err
}

// kernel is the machine that the agent runs on.
type kernel struct{}

func (kernel) process(pid int) (process, error) {
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

func (kernel) cookie(pid int) (cookie, inode uint64, err error) {
	ns, err := netns.Open("/proc/" + strconv.Itoa(pid) + "/ns/net")
	if err != nil {
		return 0, 0, err
	}
	defer ns.Close() // nobody but the pod may keep it alive
	cookie, err = ns.Cookie()
	return cookie, ns.Inode, err
}

// hostNamespaces are the agent's and that of process 1. It has to be asked
// before any thread has entered another namespace.
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

// startTime is field 22 of proc_pid_stat(5). The second is a name in brackets
// that can hold anything.
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
