// SPDX-License-Identifier: Apache-2.0

package optout

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/util/wakeup"
)

// Tracker keeps the table consistent with the pods that have opted out, as their namespaces appear, change and
// vanish. Its methods may be called from any goroutine. The table has no other writer.
type Tracker struct {
	table    Table
	log      *slog.Logger
	cookieOf func(cgroup string) (uint64, error)
	// searchIn returns where to search for the kubelet's directories; where is that as text.
	searchIn func() ([]string, error)
	where    string

	wake   wakeup.Signal
	notify func() (*fsnotify.Watcher, error)

	mu    sync.Mutex
	known bool            // SetPods has been called
	pods  map[string]*pod // by UID
	roots []string
	// search holds when the roots were last searched, how long that took, and the error.
	search struct {
		at   time.Time
		took time.Duration
		err  error
	}
	watchErr error
	// held counts the pods of each cookie in the table. leftover holds an earlier agent's cookies that no
	// pod has claimed yet.
	held     map[uint64]int
	leftover map[uint64]bool
}

// pod is a pod that has opted out.
type pod struct {
	service.OptOut
	since time.Time // when it was last found or lost
	// dirs are its cgroups, as last listed.
	dirs   []string
	listed time.Time
	// cookie of its namespace in the table; 0 if not found.
	cookie uint64
	err    error
	// scanned: at least once. seen: it had a process at the last scan.
	scanned, seen bool
	// next is the time of the next scan. Scans are frequent until scanOftenUntil.
	next, scanOftenUntil time.Time
}

// New returns a Tracker without pods. byHand are the directories in which to search for the kubelet's; if
// empty, New uses all cgroup hierarchies and the agent's cgroupRoot. Existing rows of the table stay until SetPods.
func New(table Table, byHand []string, cgroupRoot string, log *slog.Logger) (*Tracker, error) {
	t := newTracker(table, CookieOf, log)
	t.searchIn = func() ([]string, error) { return searchRoots(byHand, cgroupRoot) }
	if len(byHand) > 0 {
		t.where = "at or below " + strings.Join(byHand, " or ") + " (--pod-cgroups)"
	}
	left, err := table.All()
	if err != nil {
		return nil, err
	}
	for cookie := range left {
		t.leftover[cookie] = true
	}
	return t, nil
}

func newTracker(table Table, cookieOf func(cgroup string) (uint64, error), log *slog.Logger) *Tracker {
	return &Tracker{
		table: table, log: log, cookieOf: cookieOf,
		where: "in the cgroup hierarchies that the agent sees",
		wake:  wakeup.NewSignal(), notify: fsnotify.NewWatcher,
		pods: map[string]*pod{}, held: map[uint64]int{}, leftover: map[uint64]bool{},
	}
}

// SetPods sets the complete list of opted-out pods (R4). When it returns, those that run are in the table, and
// pods that are not in the list are not.
func (t *Tracker) SetPods(all []service.OptOut) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.known = true
	now := time.Now()
	wanted := map[string]bool{}
	for _, o := range all {
		wanted[o.UID] = true
		if p := t.pods[o.UID]; p != nil {
			p.OptOut = o
		} else {
			t.pods[o.UID] = &pod{OptOut: o, since: now, next: now}
		}
	}
	if len(t.pods) > 0 && t.search.at.IsZero() {
		t.findRoots()
	}
	// Add new pods first: if a static pod was replaced, its namespace may now belong to another pod.
	t.scanDue(time.Now())
	for uid, p := range t.pods {
		if !wanted[uid] {
			t.remove(p, "the pod is gone, or its annotation")
			delete(t.pods, uid)
		}
	}
	t.removeLeftover()
	t.wake.Send()
}

// scanDue scans all pods that are due.
func (t *Tracker) scanDue(now time.Time) {
	for _, p := range t.pods {
		if !p.next.After(now) {
			t.scanPod(p, now)
		}
	}
}

// scanPod finds the namespace of one pod and writes it to the table.
func (t *Tracker) scanPod(p *pod, now time.Time) {
	cookie := t.scanCgroups(p)
	if cookie == 0 && now.Sub(p.listed) >= emptyInterval {
		before := len(p.dirs)
		p.dirs, p.listed = t.dirsOf(p.UID), now
		if before == 0 && len(p.dirs) > 0 {
			p.scanOftenUntil = now.Add(oftenTime)
		}
		cookie = t.scanCgroups(p)
	}
	p.scanned, p.seen = true, cookie != 0
	switch {
	case cookie != 0:
		t.add(p, cookie, now)
	case p.cookie != 0 && len(p.dirs) == 0:
		t.remove(p, "its cgroup is gone")
		p.since = now
	}
	p.next = now.Add(p.interval(now))
}

// scanCgroups scans the known cgroups of a pod, and moves the one with a result to the front.
func (t *Tracker) scanCgroups(p *pod) (cookie uint64) {
	p.err = nil
	for i, dir := range p.dirs {
		cookie, err := t.cookieOf(dir)
		if cookie != 0 {
			p.err = nil
			p.dirs[0], p.dirs[i] = dir, p.dirs[0]
			return cookie
		}
		if !errors.Is(err, ErrOnNode) { // with hostNetwork there is no namespace to be found
			p.err = errors.Join(p.err, err)
		}
	}
	return 0
}

// dirsOf returns the existing cgroups of a pod.
func (t *Tracker) dirsOf(uid string) (dirs []string) {
	if !nameable(uid) {
		return nil
	}
	for _, root := range t.roots {
		for _, group := range groups(root) {
			if dir := cgroupIn(group, uid); isDirectory(dir) {
				dirs = append(dirs, dir)
			}
		}
	}
	return dirs
}

// findRoots searches for the kubelet's directories.
func (t *Tracker) findRoots() {
	begin := time.Now()
	from, err := t.searchIn()
	roots, searchErr := search(from)
	t.setRoots(begin, roots, errors.Join(err, searchErr))
}

func (t *Tracker) setRoots(begin time.Time, roots []string, err error) {
	t.search.at, t.search.took, t.search.err = time.Now(), time.Since(begin), err
	if !slices.Equal(roots, t.roots) {
		t.log.Debug("found the kubelet's cgroups", "directories", roots)
		t.roots = roots
		t.due("", time.Now())
	}
}
