// SPDX-License-Identifier: Apache-2.0

package podcgroup

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node/netns"
)

// Limits of a search: the kubelet's directory is near the top, and a machine has a few hundred cgroups.
const (
	searchDepth       = 5    // levels below a search root
	searchDirectories = 5000 // read per search root
)

// hierarchies returns the mount points of cgroup hierarchies in a mountinfo file
// (proc_pid_mountinfo(5)), v2 first.
func hierarchies(mountinfo io.Reader) ([]string, error) {
	var v1, v2 []string
	lines := bufio.NewScanner(mountinfo)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		before, after, ok := strings.Cut(lines.Text(), " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if !ok || len(fields) < 5 || len(kind) == 0 {
			continue
		}
		switch path := netns.Unescape(fields[4]); kind[0] {
		case "cgroup":
			v1 = append(v1, path)
		case "cgroup2":
			v2 = append(v2, path)
		}
	}
	return append(v2, v1...), lines.Err()
}

// searchRoots returns where a search starts: the configured directories or, without any, the agent's own cgroup
// directory and all hierarchies.
func searchRoots(byHand []string, cgroupRoot string) ([]string, error) {
	if len(byHand) > 0 {
		return byHand, nil
	}
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	mounted, err := hierarchies(f)
	if cgroupRoot != "" {
		mounted = append([]string{cgroupRoot}, mounted...)
	}
	return mounted, err
}

// inode identifies a directory that has several paths.
type inode struct{ device, number uint64 }

// search finds kubelets' directories below others, the nearest first. It neither descends into a kubelet's
// directory nor follows links. The error names a search root with more directories than the limit; the roots
// found are valid nevertheless.
func search(beginnings []string) (roots []string, err error) {
	seen := map[inode]bool{}
	for _, from := range beginnings {
		if resolved, e := filepath.EvalSymlinks(from); e == nil {
			from = resolved
		}
		found, complete := searchBelow(from, seen)
		roots = append(roots, found...)
		if !complete {
			err = fmt.Errorf("%s has more than %d directories within %d levels, and not all were searched: "+
				"set --pod-cgroups to the kubelet's directory (.../kubepods.slice or .../kubepods)", from, searchDirectories, searchDepth)
		}
	}
	return roots, err
}

func searchBelow(from string, seen map[inode]bool) (roots []string, complete bool) {
	if isRoot(filepath.Base(from)) {
		if firstVisit(from, seen) {
			roots = append(roots, from)
		}
		return roots, true
	}
	level, read := []string{from}, 0
	for range searchDepth {
		var next []string
		for _, dir := range level {
			if !firstVisit(dir, seen) {
				continue
			}
			if read++; read > searchDirectories {
				return roots, false
			}
			entries, _ := os.ReadDir(dir) // sorted; empty if the directory vanished or is not readable
			for _, e := range entries {
				path := filepath.Join(dir, e.Name())
				switch {
				case !e.IsDir():
				case !isRoot(e.Name()):
					next = append(next, path)
				case firstVisit(path, seen):
					roots = append(roots, path)
				}
			}
		}
		level = next
	}
	return roots, true
}

// firstVisit reports whether a directory was not yet visited by another path.
func firstVisit(dir string, seen map[inode]bool) bool {
	var st unix.Stat_t
	if unix.Lstat(dir, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return false
	}
	id := inode{uint64(st.Dev), st.Ino}
	if seen[id] {
		return false
	}
	seen[id] = true
	return true
}
