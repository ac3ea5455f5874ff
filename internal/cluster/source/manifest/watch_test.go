// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/google/go-cmp/cmp"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/cluster/source"
)

func overwrite(t *testing.T, path, data string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
		t.Fatal(err)
	}
}

// clusterIP returns the address of a Service of the follower.
func (f *follower) clusterIP(name string) string {
	s, ok := f.objects[service.Ref{Kind: service.KindService, Namespace: "default", Name: name}].(*service.Service)
	if !ok {
		return ""
	}
	return s.ClusterIPs[0]
}

// Editors write a file in place, or replace it.
func TestSingleFileReplaced(t *testing.T) {
	dir := folder(t, map[string]string{"web.yaml": web, "other.yaml": "not looked at"})
	path := filepath.Join(dir, "web.yaml")
	f := follow(t, New(path))
	f.want("+web")
	write(t, dir, "web.yaml", named("web", "10.96.0.2"))
	f.want("~web")
	overwrite(t, path, named("web", "10.96.0.3"))
	f.until("written in place", func() bool { return f.clusterIP("web") == "10.96.0.3" })
	rename(t, path, path+"~")
	f.want("", path+": no such file; create it")
	overwrite(t, path, "") // like the start of "kubectl get ... > web.yaml"
	f.want("", path+": is empty: write a comment into it if it is meant to be empty")
	overwrite(t, path, "# nothing\n")
	f.want("-web")
	rename(t, path+"~", path)
	f.want("+web")
}

// A half-written file is invalid until it is complete, so nothing is lost meanwhile. The number of events
// depends on when it is read: it may still be empty.
func TestHalfWrittenFile(t *testing.T) {
	dir := folder(t, map[string]string{"a.yaml": web + "---\n" + named("b", "10.96.0.2")})
	f := follow(t, New(dir))
	f.want("+b +web")
	file, err := os.OpenFile(filepath.Join(dir, "c.yaml"), os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	text := named("c", "10.96.0.3")
	for _, part := range []string{text[:40], text[40:70]} {
		if _, err := file.WriteString(part); err != nil {
			t.Fatal(err)
		}
		f.next()
		if len(f.last.Changes) > 0 || f.last.Problems.Errors() == 0 {
			t.Fatalf("%+v", f.last)
		}
	}
	if _, err := file.WriteString(text[70:]); err != nil {
		t.Fatal(err)
	}
	f.until("complete", func() bool { return f.last.Problems.Errors() == 0 || len(f.last.Changes) > 0 })
	if len(f.last.Problems) > 0 || len(f.last.Changes) != 1 || f.clusterIP("c") != "10.96.0.3" {
		t.Errorf("%+v", f.last)
	}
}

// Changes in quick succession are one event. The quiet time is long, because the machine may be busy.
func TestQuietTime(t *testing.T) {
	dir := t.TempDir()
	s := New(dir)
	s.timing.quiet, s.timing.atMost = 5*time.Second, time.Minute
	f := follow(t, s)
	f.want("")
	for i, name := range []string{"a", "b", "c"} {
		write(t, dir, name+".yaml", named(name, fmt.Sprintf("10.96.0.%d", i+1)))
		time.Sleep(20 * time.Millisecond)
	}
	f.want("+a +b +c")
}

// Many writes cause few events, and the last write counts. The quiet time is long, because on a busy machine
// each write may be delayed.
func TestFlood(t *testing.T) {
	dir := folder(t, map[string]string{"web.yaml": web})
	s := New(dir)
	s.timing.quiet, s.timing.atMost = 100*time.Millisecond, time.Second
	f := follow(t, s)
	f.want("+web")
	const writes = 2000
	for i := range writes {
		write(t, dir, "web.yaml", named("web", fmt.Sprintf("10.96.%d.%d", i/250, i%250)))
	}
	last := fmt.Sprintf("10.96.%d.%d", (writes-1)/250, (writes-1)%250)
	f.until("the last write", func() bool { return f.clusterIP("web") == last })
	if f.count > writes/20 {
		t.Errorf("%d events for %d writes", f.count, writes)
	}
}

// Endless writes do not delay the event forever.
func TestEndlessFlood(t *testing.T) {
	dir := folder(t, map[string]string{"web.yaml": web})
	s := New(dir)
	s.timing.quiet = 5 * time.Second
	f := follow(t, s)
	f.want("+web")
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
				write(t, dir, "web.yaml", named("web", fmt.Sprintf("10.97.%d.%d", i/250, i%250)))
			}
		}
	}()
	f.want("~web")
	close(stop)
	<-done
}

// A receiver that is slow to receive gets all changes as one event.
func TestSlowReceiver(t *testing.T) {
	dir := folder(t, map[string]string{"web.yaml": web})
	s := New(dir)
	s.timing.quiet, s.timing.atMost = 100*time.Millisecond, time.Second // c is noticed with b, or with a
	f := follow(t, s)
	f.want("+web")
	for i, name := range []string{"a", "b", "c"} {
		write(t, dir, name+".yaml", named(name, fmt.Sprintf("10.96.0.%d", i+1)))
		time.Sleep(2 * s.timing.quiet) // so that an event is probably waiting
	}
	f.until("all", func() bool { return len(f.objects) == 4 })
	if f.count > 3 {
		t.Errorf("%d events", f.count)
	}
}

// A change without a notification is found by the periodic read.
func TestMissedChange(t *testing.T) {
	dir, elsewhere := folder(t, map[string]string{"web.yaml": web}), t.TempDir()
	// The kernel reports a change under the name through which it was made.
	if err := os.Link(filepath.Join(dir, "web.yaml"), filepath.Join(elsewhere, "same")); err != nil {
		t.Skipf("no hard links here: %v", err)
	}
	s := New(dir)
	s.timing.resync = 100 * time.Millisecond
	f := follow(t, s)
	f.want("+web")
	overwrite(t, filepath.Join(elsewhere, "same"), named("web", "10.96.0.2"))
	f.until("found", func() bool { return f.clusterIP("web") == "10.96.0.2" })
}

// Without notifications the periodic read suffices, and the user gets a warning.
func TestNoNotifications(t *testing.T) {
	dir := folder(t, map[string]string{"web.yaml": web})
	var broken atomic.Bool
	broken.Store(true)
	s := New(dir)
	s.timing.resync = 100 * time.Millisecond
	s.notify = func() (*fsnotify.Watcher, error) {
		if broken.Load() {
			return nil, errors.New("too many open files")
		}
		return fsnotify.NewWatcher()
	}
	f := follow(t, s)
	const problem = "warning: cannot be watched (too many open files): changes are noticed only every 100ms; " +
		"raise the sysctls fs.inotify.max_user_instances and fs.inotify.max_user_watches"
	f.want("+web", problem)
	write(t, dir, "web.yaml", named("web", "10.96.0.2"))
	f.want("~web", problem)
	broken.Store(false)
	f.want("")
}

// No goroutine remains when the context ends, even while an event is waiting.
func TestNoLeaks(t *testing.T) {
	dir := folder(t, map[string]string{"web.yaml": web, "b.yaml": webSlice})
	descriptors := func() int {
		des, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip(err)
		}
		return len(des)
	}
	run := func(taken bool) {
		ctx, cancel := context.WithCancel(context.Background())
		events, done := make(chan source.Event), make(chan error)
		go func() { done <- New(dir).Run(ctx, events) }()
		if taken {
			<-events
			write(t, dir, "web.yaml", web)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	run(true) // opens what is opened only once
	fds, goroutines := descriptors(), runtime.NumGoroutine()
	for i := range 40 {
		run(i%2 == 0)
	}
	// A goroutine that has reported its end may still be counted.
	for end := time.Now().Add(deadline); runtime.NumGoroutine() > goroutines && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if n := runtime.NumGoroutine(); n > goroutines {
		buf := make([]byte, 1<<16)
		t.Errorf("%d goroutines, %d before:\n%s", n, goroutines, buf[:runtime.Stack(buf, true)])
	}
	if n := descriptors(); n > fds {
		t.Errorf("%d file descriptors, %d before", n, fds)
	}
}

// An unchanged file is not decoded again.
func TestUnchangedFilesAreKept(t *testing.T) {
	dir := folder(t, map[string]string{"a.yaml": web, "b.yaml": webSlice})
	s := New(dir)
	first, err := s.Load()
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, "a.yaml", web+"# changed\n")
	second, err := s.Load()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(refs(first), refs(second)); diff != "" {
		t.Fatal(diff)
	}
	if first.Objects[0] != second.Objects[0] || first.Objects[1] == second.Objects[1] {
		t.Error("the unchanged file was decoded again, or the changed one was not")
	}
}
