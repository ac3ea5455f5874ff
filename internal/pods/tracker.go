// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"beeline.io/beeline/internal/service"
)

// Tracker keeps the table in agreement with the pods that have opted out, as
// their namespaces come, change and go. All methods may be called from any
// goroutine; the table has no other writer.
type Tracker struct {
	table   Table
	log     *slog.Logger
	machine machine
	host    []uint64
	// begin says where to search for the kubelet's directories, where in words.
	begin func() ([]string, error)
	where string

	wake   chan struct{}
	notify func() (*fsnotify.Watcher, error)

	mu    sync.Mutex
	known bool            // what is wanted
	pods  map[string]*pod // by UID
	roots []string
	// search is when the roots were last looked for, what it took, and what is
	// wrong with it.
	search struct {
		at   time.Time
		took time.Duration
		err  error
	}
	watchErr error
	// held counts the pods of each cookie in the table. leftover are those that
	// an earlier agent put there and that no pod has claimed yet.
	held     map[uint64]int
	leftover map[uint64]bool
}

// pod is one that has opted out.
type pod struct {
	service.OptOut
	since time.Time // it is found, or missing
	// dirs are its cgroups, as they were listed last.
	dirs   []string
	listed time.Time
	// cookie of its namespace that is in the table; 0: not found.
	cookie uint64
	err    error
	// looked: once at least; seen: at the last look it had a process.
	looked, seen bool
	// next is when to look again, and eager until when that is soon.
	next, eager time.Time
}

// New returns a Tracker without pods. byHand names directories to search for the
// kubelet's; none: all cgroup hierarchies and the agent's cgroupRoot. The
// calling thread has to be in the host's network namespace. What the table holds
// stays there until Want says what is wanted.
func New(table Table, byHand []string, cgroupRoot string, log *slog.Logger) (*Tracker, error) {
	host, err := hostNamespaces()
	if err != nil {
		return nil, err
	}
	t := newTracker(table, kernel{}, host, log)
	t.begin = func() ([]string, error) { return beginnings(byHand, cgroupRoot) }
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

func newTracker(table Table, m machine, host []uint64, log *slog.Logger) *Tracker {
	return &Tracker{
		table: table, log: log, machine: m, host: host,
		where: "in the cgroup hierarchies that the agent sees",
		wake:  make(chan struct{}, 1), notify: fsnotify.NewWatcher,
		pods: map[string]*pod{}, held: map[uint64]int{}, leftover: map[uint64]bool{},
	}
}

// Want says which pods have opted out; it has to be all of them (R4). When it
// returns, those that run are in the table, and those that are not wanted any
// more are not.
func (t *Tracker) Want(all []service.OptOut) {
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
	// New ones first: a namespace that one pod gives up can be another's, if a
	// static pod was replaced.
	t.lookAt(time.Now())
	for uid, p := range t.pods {
		if !wanted[uid] {
			t.forget(p, "the pod is gone, or its annotation")
			delete(t.pods, uid)
		}
	}
	t.dropLeftover()
	notify(t.wake)
}

// lookAt looks at all pods whose time has come.
func (t *Tracker) lookAt(now time.Time) {
	for _, p := range t.pods {
		if !p.next.After(now) {
			t.look(p, now)
		}
	}
}

// look finds the namespace of one pod and puts it into the table.
func (t *Tracker) look(p *pod, now time.Time) {
	cookie := t.lookInto(p)
	if cookie == 0 && now.Sub(p.listed) >= emptyPause {
		before := len(p.dirs)
		p.dirs, p.listed = t.dirsOf(p.UID), now
		if before == 0 && len(p.dirs) > 0 {
			p.eager = now.Add(eagerTime)
		}
		cookie = t.lookInto(p)
	}
	p.looked, p.seen = true, cookie != 0
	switch {
	case cookie != 0:
		t.hold(p, cookie, now)
	case p.cookie != 0 && len(p.dirs) == 0:
		t.forget(p, "its cgroup is gone")
		p.since = now
	}
	p.next = now.Add(p.pause(now))
}

// lookInto looks into the cgroups of a pod that are known, and puts the one that
// tells first.
func (t *Tracker) lookInto(p *pod) (cookie uint64) {
	p.err = nil
	for i, dir := range p.dirs {
		cookie, err := namespaceOf(dir, t.machine, t.host)
		if cookie != 0 {
			p.err = nil
			p.dirs[0], p.dirs[i] = dir, p.dirs[0]
			return cookie
		}
		p.err = errors.Join(p.err, err)
	}
	return 0
}

// dirsOf are the cgroups of a pod that exist.
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
	from, err := t.begin()
	roots, searchErr := search(from)
	t.tookRoots(begin, roots, errors.Join(err, searchErr))
}

func (t *Tracker) tookRoots(begin time.Time, roots []string, err error) {
	t.search.at, t.search.took, t.search.err = time.Now(), time.Since(begin), err
	if !slices.Equal(roots, t.roots) {
		t.log.Debug("found the kubelet's cgroups", "directories", roots)
		t.roots = roots
		t.due("", time.Now())
	}
}

// notify leaves a note. One is enough.
func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
