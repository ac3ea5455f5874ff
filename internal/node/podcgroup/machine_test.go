// SPDX-License-Identifier: Apache-2.0

package podcgroup

import (
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"sync"
	"testing"

	"beeline.io/beeline/internal/node/netns"
)

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

// followIn returns a Follower that searches one directory. run: it runs until the test ends.
func followIn(t *testing.T, dir string, c FollowerConfig, run bool) *Follower {
	t.Helper()
	c.PodCgroups, c.Scanned, c.Log = []string{dir}, func(Key, Location, bool) {}, slog.New(slog.NewTextHandler(io.Discard, nil))
	f := NewFollower(c)
	if run {
		var loop sync.WaitGroup
		loop.Go(func() { _ = f.Run(t.Context()) })
		t.Cleanup(loop.Wait)
	}
	return f
}
