// SPDX-License-Identifier: Apache-2.0

package optout

import (
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/node/netns"
)

const patience = 30 * time.Second

// hostNS is the inode of the host's namespace in the tests.
const hostNS = 1

// fakeMachine holds processes by PID; the cookie of a namespace is its inode plus 1000.
type fakeMachine struct {
	mu     sync.Mutex
	all    map[int]fakeProcess
	moved  map[int]uint64 // namespace of a process when it is opened
	depths map[uint64]int // of the owners of namespaces, 0 for all others
	asked  int            // calls of netns
}

type fakeProcess struct{ netns, started uint64 }

func newMachine() *fakeMachine {
	return &fakeMachine{all: map[int]fakeProcess{}, moved: map[int]uint64{}, depths: map[uint64]int{}}
}

func (m *fakeMachine) start(pid int, netns, started uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all[pid] = fakeProcess{netns, started}
}

func (m *fakeMachine) process(pid int) (fakeProcess, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p, ok := m.all[pid]; ok {
		return p, nil
	}
	return fakeProcess{}, fmt.Errorf("process %d: %w", pid, fs.ErrNotExist)
}

func (m *fakeMachine) netns(pid int) (uint64, error) {
	m.asked++
	p, err := m.process(pid)
	return p.netns, err
}

func (m *fakeMachine) started(pid int) (uint64, error) {
	p, err := m.process(pid)
	return p.started, err
}

func (m *fakeMachine) open(pid int) (*netns.Namespace, error) {
	p, err := m.process(pid)
	if to, ok := m.moved[pid]; ok {
		p.netns = to
	}
	return &netns.Namespace{Inode: p.netns}, err
}

func (m *fakeMachine) depth(n *netns.Namespace) int { return m.depths[n.Inode] }

// cookieOf is CookieOf on this machine.
func (m *fakeMachine) cookieOf(dir string) (uint64, error) {
	n, err := namespaceOf(dir, m, []uint64{hostNS})
	if n == nil {
		return 0, err
	}
	return n.Inode + 1000, err
}

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

// tree creates directories; "dir: 1 2" contains these processes.
func tree(t testing.TB, root string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		dir, pids, _ := strings.Cut(line, ":")
		path := filepath.Join(root, dir)
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
		text := strings.Join(append(strings.Fields(pids), ""), "\n")
		if err := os.WriteFile(filepath.Join(path, "cgroup.procs"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// trackerIn returns a Tracker that searches one directory.
func trackerIn(t testing.TB, dir string, table *fakeTable, m *fakeMachine) *Tracker {
	t.Helper()
	tracker, err := New(table, []string{dir}, "", slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		t.Fatal(err)
	}
	tracker.follower.cookieOf = m.cookieOf
	return tracker
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

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not after %v: %s", patience, what)
		}
	}
}
