// SPDX-License-Identifier: Apache-2.0

package podcgroup

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"

	"beeline.io/beeline/internal/node/podcgroup/podcgrouptest"
)

// A pod that is followed by its cgroup is found when that appears, and is another one in another cgroup.
func TestFollowedByCgroup(t *testing.T) {
	root, m := t.TempDir(), newMachine()
	m.start(1, 40, 1)
	key := Key{Directory: filepath.Join(root, "a")}
	f := followIn(t, root, FollowerConfig{CookieOf: m.cookieOf, Unified: true}, true)
	f.Set([]Key{key})
	if l := f.Location(key); l.Directory != "" || !errors.Is(l.Err, fs.ErrNotExist) {
		t.Errorf("of a missing cgroup: %+v", l)
	}
	podcgrouptest.Tree(t, root, "a/c: 1")
	podcgrouptest.Eventually(t, "its process is found", func() bool { return f.Location(key).Namespace == 1040 })
	first := f.Location(key)
	if first.Directory != key.Directory || first.Cgroup == 0 || first.Err != nil {
		t.Errorf("%+v", first)
	}
	podcgrouptest.Tree(t, root, "b:") // with another inode
	if err := os.RemoveAll(key.Directory); err != nil {
		t.Fatal(err)
	}
	podcgrouptest.Eventually(t, "it is gone", func() bool { return f.Location(key).Cgroup == 0 })
	if err := os.Rename(filepath.Join(root, "b"), key.Directory); err != nil {
		t.Fatal(err)
	}
	podcgrouptest.Eventually(t, "it has another cgroup, without a process", func() bool {
		l := f.Location(key)
		return l.Cgroup != 0 && l.Cgroup != first.Cgroup && l.Namespace == 0
	})
}

// Only cgroups of v2 take programs.
func TestOnlyUnified(t *testing.T) {
	root, m := t.TempDir(), newMachine()
	m.start(1, 40, 1)
	podcgrouptest.Tree(t, root, "kubepods/pod-a/c: 1")
	f := followIn(t, root, FollowerConfig{CookieOf: m.cookieOf, Unified: true}, true)
	f.Set([]Key{{UID: "-a"}, {UID: "-b"}})
	if l := f.Location(Key{UID: "-a"}); l.Directory != "" || !errors.Is(l.Err, ErrNotUnified) {
		t.Errorf("in another file system: %+v", l)
	}
	if l := f.Location(Key{UID: "-b"}); l != (Location{}) {
		t.Errorf("of a missing pod: %+v", l)
	}
}

// A pod is found as soon as it exists, starting from nothing: the kubelet's directory, that of its QoS class,
// its own, a container's, a process.
func TestPodsAreFollowed(t *testing.T) {
	root, m := t.TempDir(), newMachine()
	m.start(1, 40, 1)
	m.start(2, 41, 2)
	m.start(3, 43, 3)
	a, b := Key{UID: "-a"}, Key{UID: "-b"}
	f := followIn(t, root, FollowerConfig{CookieOf: m.cookieOf}, true)
	f.Set([]Key{a, b})
	for _, step := range []string{"kubepods", "kubepods/burstable", "kubepods/burstable/pod-a", "kubepods/burstable/pod-a/c:", "kubepods/burstable/pod-a/c: 1"} {
		if l := f.Location(a); l.Namespace != 0 {
			t.Errorf("before %s: %+v", step, l)
		}
		podcgrouptest.Tree(t, root, step)
		time.Sleep(5 * time.Millisecond) // so that each is probably seen
	}
	podcgrouptest.Eventually(t, "a is found", func() bool { return f.Location(a).Namespace == 1040 })
	podcgrouptest.Tree(t, root, "kubepods/burstable/pod-b/c: 2")
	podcgrouptest.Eventually(t, "b is found", func() bool { return f.Location(b).Namespace == 1041 })
	podcgrouptest.Tree(t, root, "kubepods/burstable/pod-a/c:", "kubepods/burstable/pod-a/d: 3")
	podcgrouptest.Eventually(t, "a has another namespace", func() bool { return f.Location(a).Namespace == 1043 })
	if err := os.RemoveAll(filepath.Join(root, "kubepods/burstable")); err != nil {
		t.Fatal(err)
	}
	podcgrouptest.Eventually(t, "both are gone", func() bool { return f.Location(a) == Location{} && f.Location(b) == Location{} })
}

// Without notifications pods are still found, and the follower says so.
func TestWithoutNotifications(t *testing.T) {
	root, m := t.TempDir(), newMachine()
	m.start(1, 40, 1)
	podcgrouptest.Tree(t, root, "kubepods")
	failed := errors.New("too many open files")
	f := followIn(t, root, FollowerConfig{CookieOf: m.cookieOf, Notify: func() (*fsnotify.Watcher, error) { return nil, failed }}, true)
	f.Set([]Key{{UID: "-a"}})
	podcgrouptest.Eventually(t, "the error is known", func() bool { _, _, err := f.Health(); return errors.Is(err, failed) })
	podcgrouptest.Tree(t, root, "kubepods/pod-a/c: 1")
	podcgrouptest.Eventually(t, "found", func() bool { return f.Location(Key{UID: "-a"}).Namespace == 1040 })
}

// Nothing is done while no pod is missing and nothing changes.
func TestIdle(t *testing.T) {
	root, m := t.TempDir(), newMachine()
	m.start(1, 40, 1)
	podcgrouptest.Tree(t, root, "kubepods/pod-a/c: 1")
	f := followIn(t, root, FollowerConfig{CookieOf: m.cookieOf}, false)
	begin := time.Now()
	f.Set([]Key{{UID: "-a"}})
	searched, now := f.search.at, time.Now()
	f.searchAgain()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.scanDue(now)
	if m.asked != 1 || f.search.at != searched {
		t.Errorf("read %d processes, searched at %v and %v", m.asked, searched, f.search.at)
	}
	if next := f.nextScan().Sub(begin); next < foundInterval {
		t.Errorf("the next scan is %v after the first, want %v", next, foundInterval)
	}
	delete(f.pods, Key{UID: "-a"})
	if next := f.nextScan(); !next.IsZero() {
		t.Errorf("without pods the next scan is at %v, want never", next)
	}
}
