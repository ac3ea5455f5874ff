// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node/podcgroup"
	"beeline.io/beeline/internal/shortcut/mesh/hoststack"
)

// mostDescriptors is how many descriptors of a pod's processes are read to find a socket: a pod may have any number,
// and the agent has other work.
const mostDescriptors = 1 << 15

// A descriptor is a process's of a socket.
type descriptor struct {
	pid   string
	fd    int
	inode uint32
}

// descriptorsOf finds sockets by their inodes, in the first mostDescriptors descriptors of these processes.
func descriptorsOf(pids []string, inodes ...uint32) (found []descriptor) {
	left := mostDescriptors
	for _, pid := range pids {
		folder, err := os.Open("/proc/" + pid + "/fd")
		if err != nil {
			continue // it has ended
		}
		for left > 0 && err == nil {
			var names []string
			names, err = folder.Readdirnames(min(left, 1024))
			left -= len(names)
			for _, name := range names {
				inode := socketOf("/proc/" + pid + "/fd/" + name)
				if fd, e := strconv.Atoi(name); e == nil && inode != 0 && slices.Contains(inodes, inode) {
					found = append(found, descriptor{pid, fd, inode})
				}
			}
		}
		folder.Close()
	}
	return found
}

// socketOf returns the inode of the socket of a descriptor; 0: it is closed, or no socket's.
func socketOf(path string) (inode uint32) {
	var name [64]byte
	n, err := unix.Readlink(path, name[:])
	if err != nil {
		return 0
	}
	number, found := strings.CutPrefix(strings.TrimSuffix(string(name[:n]), "]"), "socket:[")
	if !found {
		return 0
	}
	parsed, _ := strconv.ParseUint(number, 10, 32)
	return uint32(parsed)
}

// credentialsOf returns the user, the group and the name of a process; no name: it has ended.
func credentialsOf(pid string) (user, group uint32, name string) {
	text, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		return 0, 0, ""
	}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch key { // of four ids the first is the real one, which the programs see
		case "Name":
			name = strings.TrimSpace(value)
		case "Uid":
			fmt.Sscan(value, &user)
		case "Gid":
			fmt.Sscan(value, &group)
		}
	}
	return user, group, name
}

// processes lists those of the pods.
func (s *Shortcut) processes() (all []hoststack.Process) {
	for _, pod := range s.Pods() {
		if pod.CgroupID == 0 {
			continue
		}
		pids, _ := podcgroup.Processes(pod.CgroupDirectory) // as far as they could be read
		for _, text := range pids {
			if pid, err := strconv.Atoi(text); err == nil && pid > 0 {
				all = append(all, hoststack.Process{PID: pid, Pod: pod.Label()})
			}
		}
	}
	return all
}
