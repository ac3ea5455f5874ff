// SPDX-License-Identifier: Apache-2.0

package optout

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/node/podcgroup/podcgrouptest"
)

// R4: rows of an earlier agent stay until SetPods, and rows that are still wanted are never missing.
func TestLeftoversOfAnEarlierAgent(t *testing.T) {
	root := t.TempDir()
	podcgrouptest.Tree(t, root, "kubepods/pod-a/c: 40", "kubepods/pod-b/c: 41")
	table := newTable(1040, 1041, 1099)
	tracker := trackerIn(t, root, table, nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- tracker.Run(ctx) }()
	if repairs, err := tracker.Audit(); repairs != 0 || err != nil {
		t.Errorf("Audit repairs %d (%v) before anything is known", repairs, err)
	}
	wantCookies(t, table, 1040, 1041, 1099)
	tracker.SetPods(optOuts("-a"))
	wantCookies(t, table, 1040)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if strings.Contains(strings.Join(table.steps, " "), "-1040") {
		t.Errorf("the steps were %v: 1040 was missing", table.steps)
	}
}

// Rows of an earlier agent stay while this one cannot find the pods because the kubelet's directories are not
// mounted here, or processes are not visible.
func TestLeftoversStayWhileInDoubt(t *testing.T) {
	for name, test := range map[string]struct {
		tree    string
		problem string
	}{
		"no kubelet directory":  {"system.slice", "no kubelet directory"},
		"another PID namespace": {"kubepods/pod-a/c: 0", "hostPID"},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			podcgrouptest.Tree(t, root, test.tree)
			table := newTable(1040, 1099)
			tracker := trackerIn(t, root, table, nil)
			tracker.SetPods(optOuts("-a"))
			wantCookies(t, table, 1040, 1099)
			s := tracker.Status()
			if all := s.Problems.String() + "\n" + s.Pods[0].Problem; !strings.Contains(all, test.problem) {
				t.Errorf("the status says %q, want %q", all, test.problem)
			}
			podcgrouptest.Tree(t, root, "kubepods/pod-a/c: 40") // and now it can
			go tracker.Run(t.Context())
			podcgrouptest.Eventually(t, "the pod alone is in the table", func() bool { return slices.Equal(table.cookies(), []uint64{1040}) })
		})
	}
}

// A pod that is no longer wanted is removed at once; a changed cgroup or namespace is followed.
func TestPodsComeAndGo(t *testing.T) {
	root := t.TempDir()
	podcgrouptest.Tree(t, root, "kubepods/pod-a/c: 40", "kubepods/burstable/pod-b/c: 41")
	table := newTable()
	tracker := trackerIn(t, root, table, nil)
	go tracker.Run(t.Context())
	tracker.SetPods(optOuts("-a", "-b"))
	wantCookies(t, table, 1040, 1041)
	tracker.SetPods(optOuts("-b"))
	wantCookies(t, table, 1041)

	// No process for a while, and then one in another namespace.
	podcgrouptest.Tree(t, root, "kubepods/burstable/pod-b/c:", "kubepods/burstable/pod-b/e:")
	time.Sleep(50 * time.Millisecond)
	wantCookies(t, table, 1041)
	podcgrouptest.Tree(t, root, "kubepods/burstable/pod-b/d: 42")
	podcgrouptest.Eventually(t, "its other namespace is in the table", func() bool { return slices.Equal(table.cookies(), []uint64{1042}) })
	if steps := strings.Join(table.steps, " "); !strings.HasSuffix(steps, "+1042 -1041") {
		t.Errorf("the steps were %q, want the new namespace before the old one is removed", steps)
	}
	if err := os.RemoveAll(filepath.Join(root, "kubepods/burstable/pod-b")); err != nil {
		t.Fatal(err)
	}
	podcgrouptest.Eventually(t, "the table is empty", func() bool { return len(table.cookies()) == 0 })
	if s := tracker.Status(); s.Pods[0].Found || s.Pods[0].Problem != "no cgroup has its UID in its name" {
		t.Errorf("%+v", s.Pods[0])
	}
}

// A namespace of two pods is removed with the last one.
func TestSharedNamespace(t *testing.T) {
	root := t.TempDir()
	podcgrouptest.Tree(t, root, "kubepods/pod-a/c: 40", "kubepods/pod-b/c: 40")
	table := newTable()
	tracker := trackerIn(t, root, table, nil)
	tracker.SetPods(optOuts("-a", "-b"))
	tracker.SetPods(optOuts("-b"))
	wantCookies(t, table, 1040)
	tracker.SetPods(nil)
	wantCookies(t, table)
}

// Errors of the table are reported, and the write is retried.
func TestTableRefuses(t *testing.T) {
	root := t.TempDir()
	podcgrouptest.Tree(t, root, "kubepods/pod-a/c: 40")
	table := newTable()
	tracker := trackerIn(t, root, table, nil)
	table.refuseAll(errors.New("table opted_out is full"))
	tracker.SetPods(optOuts("-a"))
	if s := tracker.Status(); s.Pods[0].Found || !strings.Contains(s.Pods[0].Problem, "is full") {
		t.Errorf("%+v", s.Pods[0])
	}
	table.refuseAll(nil)
	go tracker.Run(t.Context())
	tracker.SetPods(optOuts("-a"))
	podcgrouptest.Eventually(t, "in the table", func() bool { return len(table.cookies()) == 1 })
	table.refuseAll(errors.New("no"))
	tracker.SetPods(nil)
	wantCookies(t, table, 1040)
	table.refuseAll(nil)
	podcgrouptest.Eventually(t, "out of the table", func() bool { return len(table.cookies()) == 0 })
}

// The audit restores the table after a change by another writer.
func TestAuditRepairs(t *testing.T) {
	root := t.TempDir()
	podcgrouptest.Tree(t, root, "kubepods/pod-a/c: 40")
	table := newTable()
	tracker := trackerIn(t, root, table, nil)
	tracker.SetPods(optOuts("-a"))
	table.Delete(1040)
	table.Put(7, 1)
	table.Put(8, 1)
	for _, want := range []int{3, 0} {
		if repairs, err := tracker.Audit(); repairs != want || err != nil {
			t.Errorf("%d repairs (%v), want %d", repairs, err, want)
		}
		wantCookies(t, table, 1040)
	}
}

// A pod is late if it is not found for a while, and is not being deleted.
func TestLate(t *testing.T) {
	now := time.Now()
	for name, test := range map[string]struct {
		pod  pod
		want bool
	}{
		"just now":      {pod{since: now}, false},
		"long":          {pod{since: now.Add(-time.Minute)}, true},
		"found":         {pod{since: now.Add(-time.Minute), cookie: 1}, false},
		"pending":       {pod{since: now.Add(-time.Minute), OptOut: service.OptOut{Pending: true}}, false},
		"being deleted": {pod{since: now.Add(-time.Minute), OptOut: service.OptOut{Deleting: true}}, false},
	} {
		if got := test.pod.status(now); got.Late != test.want {
			t.Errorf("%s: late %v", name, got.Late)
		}
	}
}

// Without notifications the status says so.
func TestStatusWithoutNotifications(t *testing.T) {
	root := t.TempDir()
	podcgrouptest.Tree(t, root, "kubepods")
	tracker := trackerIn(t, root, newTable(), func() (*fsnotify.Watcher, error) { return nil, errors.New("too many open files") })
	tracker.SetPods(optOuts("-a"))
	go tracker.Run(t.Context())
	podcgrouptest.Eventually(t, "the status says so", func() bool {
		s := tracker.Status()
		return len(s.Problems) == 1 && strings.Contains(s.Problems[0].Remedy, "fs.inotify.max_user_instances")
	})
}
