// SPDX-License-Identifier: Apache-2.0

package optout

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNotUnified means that a pod has cgroups only in hierarchies of cgroup v1, which take no programs of sockets.
var ErrNotUnified = errors.New("the kubelet puts its processes into cgroup v1 only: boot the node with systemd.unified_cgroup_hierarchy=1")

// A Finder finds the cgroups of pods by their UIDs, for others than the Tracker. It is not safe for concurrent use.
type Finder struct {
	searchIn func() ([]string, error)
	roots    []string
	searched time.Time
	took     time.Duration
}

// NewFinder returns a Finder that searches where a Tracker would (New).
func NewFinder(byHand []string, cgroupRoot string) *Finder {
	return &Finder{searchIn: func() ([]string, error) { return searchRoots(byHand, cgroupRoot) }}
}

// Unified returns a pod's directory of cgroup v2; empty: it has no cgroup yet.
//
// Errors: ErrNotUnified.
func (f *Finder) Unified(uid string) (directory string, err error) {
	if !nameable(uid) {
		return "", nil
	}
	directory, err = f.look(uid)
	if directory != "" || time.Since(f.searched) < max(missingInterval, searchShare*f.took) {
		return directory, err
	}
	begin := time.Now()
	from, _ := f.searchIn()
	f.roots, _ = search(from)
	f.searched, f.took = time.Now(), time.Since(begin)
	return f.look(uid)
}

func (f *Finder) look(uid string) (string, error) {
	other := false
	for _, group := range f.Groups() {
		directory := cgroupIn(group, uid)
		var st unix.Statfs_t
		if unix.Statfs(directory, &st) != nil {
			continue
		}
		if st.Type == unix.CGROUP2_SUPER_MAGIC {
			return directory, nil
		}
		other = true
	}
	if other {
		return "", ErrNotUnified
	}
	return "", nil
}

// Groups returns the directories in which cgroups of pods appear, as far as they are known.
func (f *Finder) Groups() (all []string) {
	for _, root := range f.roots {
		all = append(all, groups(root)...)
	}
	return all
}
