// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/google/go-cmp/cmp"

	"beeline.io/beeline/internal/service"
	"beeline.io/beeline/internal/source"
)

func symlink(t *testing.T, target, name string) {
	t.Helper()
	// By renaming, so that the name always means something.
	if err := os.Symlink(target, name+".new"); err != nil {
		t.Fatal(err)
	}
	rename(t, name+".new", name)
}

func overwrite(t *testing.T, path, data string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
		t.Fatal(err)
	}
}

// clusterIP is the address of a Service that the follower has.
func (f *follower) clusterIP(name string) string {
	s, ok := f.objects[service.Ref{Kind: service.KindService, Namespace: "default", Name: name}].(*service.Service)
	if !ok {
		return ""
	}
	return s.ClusterIPs[0]
}

// configMap lays a folder out as the kubelet mounts a ConfigMap: the files are
// links through ..data, which is a link to a folder that is never changed.
func configMap(t *testing.T, dir string, generation int, files map[string]string) {
	t.Helper()
	real := fmt.Sprintf("..generation_%d", generation)
	if err := os.Mkdir(filepath.Join(dir, real), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, data := range files {
		overwrite(t, filepath.Join(dir, real, name), data)
	}
	symlink(t, real, filepath.Join(dir, "..data"))
	for name := range files {
		if _, err := os.Lstat(filepath.Join(dir, name)); err != nil {
			symlink(t, "..data/"+name, filepath.Join(dir, name))
		}
	}
	if generation > 1 {
		remove(t, dir, fmt.Sprintf("..generation_%d", generation-1))
	}
}

// The swap of ..data is noticed, whichever name inside the mount the source has.
func TestConfigMap(t *testing.T) {
	for _, path := range []string{"", "a.yaml", "..data", "..data/a.yaml"} {
		t.Run("mount/"+path, func(t *testing.T) {
			dir := t.TempDir()
			configMap(t, dir, 1, map[string]string{"a.yaml": web})
			f := follow(t, New(filepath.Join(dir, path)))
			f.want("+web")
			for i := 2; i < 6; i++ {
				ip := fmt.Sprintf("10.96.0.%d", i)
				configMap(t, dir, i, map[string]string{"a.yaml": named("web", ip)})
				f.until("generation "+ip, func() bool { return f.clusterIP("web") == ip })
				if len(f.objects) != 1 {
					t.Fatalf("objects %v", f.names())
				}
			}
		})
	}
}

// A read never mixes two states of a mounted ConfigMap.
func TestConfigMapIsReadWhole(t *testing.T) {
	dir := t.TempDir()
	names := []string{"a", "b", "c", "d"}
	generation := func(i int) {
		files := make(map[string]string)
		for _, name := range names {
			files[name+".yaml"] = named(name, fmt.Sprintf("10.96.%d.1", i%200))
		}
		configMap(t, dir, i, files)
	}
	generation(1)
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 2; !stop.Load() && !t.Failed(); i++ {
			generation(i)
			time.Sleep(2 * time.Millisecond)
		}
	}()
	defer func() { stop.Store(true); <-done }()

	s, good := New(dir), make(map[string]bool)
	for end := time.Now().Add(deadline); len(good) < 50 && time.Now().Before(end); {
		st, err := s.Load()
		if err != nil {
			if !strings.Contains(err.Error(), "while it was being read") {
				t.Fatal(err)
			}
			continue
		}
		ips := make(map[string]bool)
		for _, o := range st.Objects {
			ips[o.(*service.Service).ClusterIPs[0]] = true
		}
		if len(ips) != 1 || len(st.Objects) != len(names) {
			t.Fatalf("a mixture: %v", ips)
		}
		for ip := range ips {
			good[ip] = true
		}
	}
	if len(good) < 50 {
		t.Errorf("only %d states seen", len(good))
	}
}

// Links on the way to the manifests, and from them, may come to mean something
// else.
func TestSymlinks(t *testing.T) {
	root := t.TempDir()
	at := func(name ...string) string { return filepath.Join(append([]string{root}, name...)...) }
	for _, name := range []string{"one", "two", "elsewhere", "etc"} {
		if err := os.Mkdir(at(name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, at("one"), "web.yaml", web)
	write(t, at("two"), "web.yaml", named("web", "10.96.0.2"))
	write(t, at("elsewhere"), "b.yaml", named("b", "10.96.0.3"))
	symlink(t, "../one", at("etc", "current"))
	symlink(t, at("etc", "current"), at("manifests"))
	symlink(t, "../elsewhere/b.yaml", at("one", "b.yaml"))

	f := follow(t, New(at("manifests")))
	f.want("+b +web")
	write(t, at("elsewhere"), "b.yaml", named("b", "10.96.0.33")) // what a file in the folder links to
	f.want("~b")
	symlink(t, "../two", at("etc", "current")) // a link that the folder's name links to
	f.want("-b ~web")
	write(t, at("two"), "web.yaml", named("web", "10.96.0.22")) // in the new folder
	f.want("~web")
	symlink(t, "one", at("manifests")) // the folder's name
	f.want("+b ~web")
}

// Editors write a single file in place, or put another into its place.
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
	f.want("", path+": no such file or folder")
	overwrite(t, path, "")
	f.until("empty", func() bool { return len(f.objects) == 0 && len(f.last.Problems) == 0 })
	rename(t, path+"~", path)
	f.want("+web")
}

// A half-written file is bad until it is complete, so nothing is lost meanwhile.
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
	f.want("+c")
}

// Changes that follow one another closely are one event.
func TestQuietTime(t *testing.T) {
	dir := t.TempDir()
	s := New(dir)
	s.timing.quiet, s.timing.atMost = 2*time.Second, time.Minute
	f := follow(t, s)
	f.want("")
	for _, name := range []string{"a", "b", "c"} {
		write(t, dir, name+".yaml", named(name, "10.96.0.1"))
		time.Sleep(20 * time.Millisecond)
	}
	f.want("+a +b +c")
}

// Many writes are few events, and the last write counts.
func TestFlood(t *testing.T) {
	dir := folder(t, map[string]string{"web.yaml": web})
	f := follow(t, New(dir))
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

// Writes that never end do not put off the event for ever.
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

// A receiver that does not take events gets all that happened as one.
func TestSlowReceiver(t *testing.T) {
	dir := folder(t, map[string]string{"web.yaml": web})
	s := New(dir)
	f := follow(t, s)
	f.want("+web")
	for _, name := range []string{"a", "b", "c"} {
		write(t, dir, name+".yaml", named(name, "10.96.0.1"))
		time.Sleep(2 * s.timing.quiet) // only makes it likely that an event waits
	}
	f.until("all", func() bool { return len(f.objects) == 4 })
	if f.count > 3 {
		t.Errorf("%d events", f.count)
	}
}

// A change that no notification tells of is found by the periodic read.
func TestMissedChange(t *testing.T) {
	dir, elsewhere := folder(t, map[string]string{"web.yaml": web}), t.TempDir()
	// The kernel tells of a change under the name that it was made by.
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

// Without notifications, the periodic read is enough, and the user is told.
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

// Nothing is left over when the context ends, not even while an event waits.
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
	run(true) // what is opened once for all
	fds, goroutines := descriptors(), runtime.NumGoroutine()
	for i := range 40 {
		run(i%2 == 0)
	}
	// A goroutine that has said that it is done may still be counted.
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

// A file that did not change is not decoded again.
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
