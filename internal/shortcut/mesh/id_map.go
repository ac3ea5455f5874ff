// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node/netns"
)

// An idMap maps the ids of a user namespace to those of the agent's. An empty one is of the agent's own.
type idMap []idRange

type idRange struct{ inside, outside, length uint32 }

// outside returns an id as the agent's user namespace has it.
func (m idMap) outside(id uint32) (uint32, bool) {
	if len(m) == 0 {
		return id, true
	}
	for _, r := range m {
		if id-r.inside < r.length {
			return r.outside + (id - r.inside), true
		}
	}
	return 0, false
}

// parseIDMap reads /proc/PID/uid_map (user_namespaces(7)).
func parseIDMap(text string) (m idMap, err error) {
	for line := range strings.Lines(text) {
		var r idRange
		if _, err := fmt.Sscan(line, &r.inside, &r.outside, &r.length); err != nil {
			return nil, fmt.Errorf("%q: not three numbers: %w", strings.TrimSpace(line), err)
		}
		m = append(m, r)
	}
	return m, nil
}

// mapsOf returns the maps of the user namespace that owns the network namespace of a pod; none if that is the agent's.
// A pod of Kubernetes with hostUsers: false has such a one (KEP-127). The user namespaces of its processes do not
// count: any application can make one, with a map that makes it the proxy.
func mapsOf(namespace *netns.Namespace, pids []string) (users, groups idMap, err error) {
	owner, err := unix.IoctlRetInt(namespace.FD(), unix.NS_GET_USERNS)
	if err != nil {
		return nil, nil, os.NewSyscallError("ioctl of NS_GET_USERNS", err)
	}
	defer unix.Close(owner)
	var wanted, own unix.Stat_t
	if err := errors.Join(unix.Fstat(owner, &wanted), unix.Stat("/proc/self/ns/user", &own)); err != nil {
		return nil, nil, err
	}
	if wanted.Ino == own.Ino {
		return nil, nil, nil
	}
	for _, pid := range pids {
		var their unix.Stat_t
		if unix.Stat("/proc/"+pid+"/ns/user", &their) != nil || their.Ino != wanted.Ino {
			continue
		}
		if users, err = readIDMap(pid, "uid_map"); err == nil {
			groups, err = readIDMap(pid, "gid_map")
		}
		if unlessGone(err) == nil && err != nil {
			continue
		}
		return users, groups, err
	}
	return nil, nil, errors.New("no process of the pod is in the user namespace that owns its network namespace: nothing says which users of the node its users are")
}

func readIDMap(pid, file string) (idMap, error) {
	path := "/proc/" + pid + "/" + file
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	m, err := parseIDMap(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}
