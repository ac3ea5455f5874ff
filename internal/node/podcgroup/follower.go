// SPDX-License-Identifier: Apache-2.0

package podcgroup

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/util/wakeup"
)

// ErrNotUnified means that a pod has cgroups only in hierarchies of cgroup v1, which take no programs of sockets.
var ErrNotUnified = errors.New("the kubelet puts its processes into cgroup v1 only: boot the node with systemd.unified_cgroup_hierarchy=1")

// A Key names a pod that is followed: by its UID, or by its cgroup.
type Key struct{ UID, Directory string }

// A Location is where the processes of a pod are.
type Location struct {
	// Directory is its cgroup; empty: it has none. Cgroup is the ID of that.
	Directory string
	Cgroup    uint64
	// Namespace is the cookie of its network namespace; 0: it has had no process yet. It stays until the pod has
	// another one, or its cgroup is gone.
	Namespace uint64
	// Err is why the last scan may have missed something; nil: it has not.
	Err error
}

// FollowerConfig is the configuration of a Follower.
type FollowerConfig struct {
	// PodCgroups are the directories in which to search for the kubelet's. If empty, these are all cgroup
	// hierarchies and the agent's CgroupRoot.
	PodCgroups []string
	CgroupRoot string
	// Unified: only cgroups of v2 count, which take programs.
	Unified bool
	// Scanned is called after each scan of a pod. It must not call the Follower.
	Scanned func(key Key, l Location, changed bool)
	Log     *slog.Logger
	// CookieOf and Notify are others than those of the kernel; nil: CookieOf, fsnotify.NewWatcher.
	CookieOf func(directory string) (uint64, error)
	Notify   func() (*fsnotify.Watcher, error)
}

// A Follower finds the cgroups and network namespaces of pods, and follows them as they appear, change and vanish. Its
// methods may be called from any goroutine.
type Follower struct {
	config FollowerConfig
	wake   wakeup.Signal

	mu    sync.Mutex
	pods  map[Key]*followed
	roots []string // the kubelet's directories
	// search holds when the roots were last searched, how long that took, and the error.
	search struct {
		at   time.Time
		took time.Duration
		err  error
	}
	watchErr error
}

// followed is a pod that is followed.
type followed struct {
	Location
	// dirs are its cgroups, as last listed; unlisted is why some are not there.
	dirs     []string
	listed   time.Time
	unlisted error
	// seen: it had a process at the last scan.
	seen bool
	// next is the time of the next scan. Scans are frequent until scanOftenUntil.
	next, scanOftenUntil time.Time
}

// NewFollower returns a Follower without pods.
func NewFollower(c FollowerConfig) *Follower {
	if c.CookieOf == nil {
		c.CookieOf = CookieOf
	}
	if c.Notify == nil {
		c.Notify = fsnotify.NewWatcher
	}
	return &Follower{config: c, wake: wakeup.NewSignal(), pods: map[Key]*followed{}}
}

// Set sets the pods to be followed. When it returns, those that run are found.
func (f *Follower) Set(keys []Key) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	wanted := map[Key]bool{}
	for _, key := range keys {
		wanted[key] = true
		if p := f.pods[key]; p == nil {
			f.pods[key] = &followed{next: now}
		} else if !p.seen {
			p.next, p.listed = now, time.Time{}
		}
	}
	for key := range f.pods {
		if !wanted[key] {
			delete(f.pods, key)
		}
	}
	if len(f.roots) == 0 && f.searchDue() {
		begin := time.Now()
		roots, err := f.findRoots()
		f.setRoots(begin, roots, err)
	}
	f.scanDue(time.Now())
	f.wake.Send()
}

// Location returns where a pod is that is followed.
func (f *Follower) Location(key Key) Location {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p := f.pods[key]; p != nil {
		return p.Location
	}
	return Location{}
}

// Health returns the kubelet's directories as far as they are known, why others may be missing, and why cgroups are not
// watched.
func (f *Follower) Health() (roots []string, search, watch error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.roots, f.search.err, f.watchErr
}

// missing reports whether a cgroup is not found that the kubelet names.
func (f *Follower) missing() bool {
	for key, p := range f.pods {
		if key.UID != "" && len(p.dirs) == 0 {
			return true
		}
	}
	return false
}

// scanDue scans all pods that are due.
func (f *Follower) scanDue(now time.Time) {
	for key, p := range f.pods {
		if !p.next.After(now) {
			f.scan(key, p, now)
		}
	}
}

// scan finds the cgroup and the namespace of one pod.
func (f *Follower) scan(key Key, p *followed, now time.Time) {
	before := p.Location
	cookie := f.scanCgroups(p)
	if cookie == 0 && now.Sub(p.listed) >= emptyInterval {
		known := len(p.dirs)
		p.dirs, p.unlisted = f.dirsOf(key)
		p.listed = now
		if known == 0 && len(p.dirs) > 0 {
			p.scanOftenUntil = now.Add(oftenTime)
		}
		cookie = f.scanCgroups(p)
	}
	p.seen = cookie != 0
	p.locate(cookie, f.config.Unified)
	if p.next = now.Add(f.interval(p, now)); before.Directory != "" && p.Directory == "" {
		p.next = now // once more, when the directories are watched in which it will appear again
	}
	f.config.Scanned(key, p.Location, p.Directory != before.Directory || p.Cgroup != before.Cgroup || p.Namespace != before.Namespace)
}

// locate sets the location after a scan. A pod has one cgroup of v2, but several of v1.
func (p *followed) locate(cookie uint64, unified bool) {
	var st unix.Stat_t
	p.Directory = ""
	if len(p.dirs) > 0 && unix.Stat(p.dirs[0], &st) == nil {
		p.Directory = p.dirs[0]
	}
	if cookie != 0 || len(p.dirs) == 0 || unified && st.Ino != p.Cgroup {
		p.Namespace = cookie
	}
	p.Cgroup = st.Ino
}

// scanCgroups scans the known cgroups of a pod, and moves the one with a result to the front.
func (f *Follower) scanCgroups(p *followed) (cookie uint64) {
	p.Err = p.unlisted
	onNode := false
	for i, dir := range p.dirs {
		cookie, err := f.config.CookieOf(dir)
		if cookie != 0 {
			p.Err = nil
			p.dirs[0], p.dirs[i] = dir, p.dirs[0]
			return cookie
		}
		if onNode = onNode || errors.Is(err, ErrOnNode); !errors.Is(err, ErrOnNode) {
			p.Err = errors.Join(p.Err, err)
		}
	}
	if p.Err == nil && onNode {
		p.Err = ErrOnNode
	}
	return 0
}

// dirsOf returns the existing cgroups of a pod.
func (f *Follower) dirsOf(key Key) (dirs []string, err error) {
	if key.Directory != "" {
		if _, err := os.Stat(key.Directory); err != nil {
			return nil, err
		}
		return []string{key.Directory}, nil
	}
	if !nameable(key.UID) {
		return nil, nil
	}
	for _, root := range f.roots {
		for _, group := range groups(root) {
			dir := cgroupIn(group, key.UID)
			switch {
			case !isDirectory(dir):
			case f.config.Unified && !isUnified(dir):
				err = ErrNotUnified
			default:
				dirs = append(dirs, dir)
			}
		}
	}
	if len(dirs) > 0 {
		err = nil
	}
	return dirs, err
}

func isUnified(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC
}

// Run follows the pods until ctx ends. It always returns nil.
func (f *Follower) Run(ctx context.Context) error {
	w := &watcher{open: f.config.Notify, dirs: map[string]bool{}}
	defer w.close()
	for {
		f.searchAgain()
		f.mu.Lock()
		f.watchErr = w.watch(f.watched())
		// Watch first, then scan, so that no later change is missed.
		for _, dir := range w.takeFresh() {
			f.due(dir, time.Now())
		}
		f.scanDue(time.Now())
		next := f.nextScan()
		f.mu.Unlock()
		if !f.wait(ctx, w, next) {
			return nil
		}
	}
}

// searchDue reports whether to search for more kubelet directories: while a pod is missing.
func (f *Follower) searchDue() bool {
	return f.missing() && time.Since(f.search.at) >= max(missingInterval, searchShare*f.search.took)
}

func (f *Follower) searchAgain() {
	f.mu.Lock()
	due := f.searchDue()
	f.mu.Unlock()
	if !due {
		return
	}
	begin := time.Now()
	roots, err := f.findRoots() // without the lock, because it may take a while
	f.mu.Lock()
	defer f.mu.Unlock()
	f.setRoots(begin, roots, err)
}

func (f *Follower) findRoots() ([]string, error) {
	from, err := searchRoots(f.config.PodCgroups, f.config.CgroupRoot)
	roots, searchErr := search(from)
	return roots, errors.Join(err, searchErr)
}

func (f *Follower) setRoots(begin time.Time, roots []string, err error) {
	f.search.at, f.search.took, f.search.err = time.Now(), time.Since(begin), err
	if !slices.Equal(roots, f.roots) {
		f.config.Log.Debug("found the kubelet's cgroups", "directories", roots)
		f.roots = roots
		f.due("", time.Now())
	}
}

// nextScan returns when the next scan is due; the zero time if none is due without a change.
func (f *Follower) nextScan() (next time.Time) {
	for _, p := range f.pods {
		if next.IsZero() || p.next.Before(next) {
			next = p.next
		}
	}
	return next
}

// due schedules scans after a change in a directory: of the pods that have it, or of all missing ones.
func (f *Follower) due(dir string, now time.Time) {
	owned := false
	for _, p := range f.pods {
		if slices.Contains(p.dirs, dir) {
			p.next, p.scanOftenUntil, p.listed = now, now.Add(oftenTime), time.Time{}
			owned = true
		}
	}
	for key, p := range f.pods {
		if !p.seen && (!owned || filepath.Dir(key.Directory) == dir) {
			p.next, p.listed = now, time.Time{}
		}
	}
}

// wait returns true when a scan is due, and false when ctx has ended.
func (f *Follower) wait(ctx context.Context, w *watcher, next time.Time) bool {
	var clock <-chan time.Time
	if !next.IsZero() {
		timer := time.NewTimer(time.Until(next))
		defer timer.Stop()
		clock = timer.C
	}
	for {
		select {
		case <-ctx.Done():
			return false
		case <-f.wake:
			return true
		case <-clock:
			return true
		case ev, ok := <-w.events():
			if !ok {
				return true
			}
			dir, concerns := w.concerns(ev)
			if !concerns {
				continue
			}
			f.mu.Lock()
			f.due(dir, time.Now())
			f.mu.Unlock()
			return true
		case <-w.errors(): // the kernel's queue overflowed: anything may have changed
			f.mu.Lock()
			for _, p := range f.pods {
				p.next, p.listed = time.Now(), time.Time{}
			}
			f.mu.Unlock()
			return true
		}
	}
}

// watched returns the directories to watch: those of pods, and those in which missing ones will appear.
func (f *Follower) watched() (all []string) {
	for key, p := range f.pods {
		if len(p.dirs) > 0 && p.seen {
			all = append(all, p.dirs[0]) // one is enough for a pod with a process
		} else {
			all = append(all, p.dirs...)
		}
		if key.Directory != "" && len(p.dirs) == 0 {
			all = append(all, filepath.Dir(key.Directory))
		}
	}
	if f.missing() {
		for _, root := range f.roots {
			all = append(append(all, filepath.Dir(root)), groups(root)...)
		}
	}
	return slices.DeleteFunc(all, func(dir string) bool {
		_, err := os.Lstat(dir)
		return err != nil
	})
}
