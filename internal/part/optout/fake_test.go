// SPDX-License-Identifier: Apache-2.0

package optout

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/fsnotify/fsnotify"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/node/podcgroup"
)

// fakeTable is a table that can return errors.
type fakeTable struct {
	mu     sync.Mutex
	all    map[uint64]uint32
	refuse error
	steps  []string
}

func newTable(cookies ...uint64) *fakeTable {
	t := &fakeTable{all: map[uint64]uint32{}}
	for _, c := range cookies {
		t.all[c] = 1
	}
	return t
}

func (t *fakeTable) change(step string, cookie uint64, do func()) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.refuse == nil {
		t.steps = append(t.steps, fmt.Sprint(step, cookie))
		do()
	}
	return t.refuse
}

func (t *fakeTable) Put(c uint64, one uint32) error {
	return t.change("+", c, func() { t.all[c] = one })
}

func (t *fakeTable) Delete(c uint64) error {
	return t.change("-", c, func() { delete(t.all, c) })
}

func (t *fakeTable) All() (map[uint64]uint32, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.all), nil
}

func (t *fakeTable) refuseAll(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refuse = err
}

func (t *fakeTable) cookies() []uint64 {
	all, _ := t.All()
	return slices.Sorted(maps.Keys(all))
}

// trackerIn returns a Tracker that searches one directory. The cookie of a pod's namespace is 1000 more than the PID in
// its cgroup, or in one below.
func trackerIn(t testing.TB, dir string, table *fakeTable, notify func() (*fsnotify.Watcher, error)) *Tracker {
	t.Helper()
	tracker, err := newTracker(table, podcgroup.FollowerConfig{
		PodCgroups: []string{dir}, CookieOf: cookieOf, Notify: notify, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	return tracker
}

var errHiddenProcess = errors.New("hostPID")

func cookieOf(cgroup string) (cookie uint64, err error) {
	pids, err := podcgroup.Processes(cgroup)
	switch {
	case err != nil || len(pids) == 0:
		return 0, err
	case pids[0] == "0":
		return 0, errHiddenProcess
	}
	pid, err := strconv.ParseUint(pids[0], 10, 64)
	return pid + 1000, err
}

// optOuts returns pods with these UIDs.
func optOuts(uids ...string) (all []service.OptOut) {
	for _, uid := range uids {
		all = append(all, service.OptOut{
			Pod: service.Ref{Kind: service.KindPod, Namespace: "shop", Name: "pod-" + uid}, UID: uid, Because: service.KindNamespace,
		})
	}
	return all
}

func wantCookies(t *testing.T, table *fakeTable, want ...uint64) {
	t.Helper()
	if got := table.cookies(); !slices.Equal(got, want) {
		t.Errorf("the table holds %v, want %v", got, want)
	}
}
