// SPDX-License-Identifier: Apache-2.0

package optout

import (
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// followIn returns a Follower that searches one directory, and runs until the test ends.
func followIn(t *testing.T, dir string, m *fakeMachine, unified bool) *Follower {
	t.Helper()
	f := NewFollower(FollowerConfig{
		PodCgroups: []string{dir}, Unified: unified, Scanned: func(Key, Location, bool) {}, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	f.cookieOf = m.cookieOf
	var loop sync.WaitGroup
	loop.Go(func() { _ = f.Run(t.Context()) })
	t.Cleanup(loop.Wait)
	return f
}

// A pod that is followed by its cgroup is found when that appears, and is another one in another cgroup.
func TestFollowedByCgroup(t *testing.T) {
	root, m := t.TempDir(), newMachine()
	m.start(1, 40, 1)
	key := Key{Directory: filepath.Join(root, "a")}
	f := followIn(t, root, m, true)
	f.Set([]Key{key})
	if l := f.Location(key); l.Directory != "" || !errors.Is(l.Err, fs.ErrNotExist) {
		t.Errorf("of a missing cgroup: %+v", l)
	}
	tree(t, root, "a/c: 1")
	eventually(t, "its process is found", func() bool { return f.Location(key).Namespace == 1040 })
	first := f.Location(key)
	if first.Directory != key.Directory || first.Cgroup == 0 || first.Err != nil {
		t.Errorf("%+v", first)
	}
	tree(t, root, "b:") // with another inode
	if err := os.RemoveAll(key.Directory); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is gone", func() bool { return f.Location(key).Cgroup == 0 })
	if err := os.Rename(filepath.Join(root, "b"), key.Directory); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it has another cgroup, without a process", func() bool {
		l := f.Location(key)
		return l.Cgroup != 0 && l.Cgroup != first.Cgroup && l.Namespace == 0
	})
}

// Only cgroups of v2 take programs.
func TestOnlyUnified(t *testing.T) {
	root, m := t.TempDir(), newMachine()
	m.start(1, 40, 1)
	tree(t, root, "kubepods/pod-a/c: 1")
	f := followIn(t, root, m, true)
	f.Set([]Key{{UID: "-a"}, {UID: "-b"}})
	if l := f.Location(Key{UID: "-a"}); l.Directory != "" || !errors.Is(l.Err, ErrNotUnified) {
		t.Errorf("in another file system: %+v", l)
	}
	if l := f.Location(Key{UID: "-b"}); l != (Location{}) {
		t.Errorf("of a missing pod: %+v", l)
	}
}
