// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/cluster/source"
)

// deadline bounds waits for required events; a passing test does not reach it.
const deadline = time.Minute

// follower receives the events of a running source, and checks invariants of all events.
type follower struct {
	t       *testing.T
	events  chan source.Event
	objects map[service.Ref]service.Object
	last    source.Event
	count   int
}

// follow runs a source until the end of the test. Such tests mostly wait, so they run in parallel.
func follow(t *testing.T, s *Source) *follower {
	t.Helper()
	t.Parallel()
	f := &follower{t: t, events: make(chan source.Event), objects: make(map[service.Ref]service.Object)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, f.events) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(deadline):
			t.Error("Run continues after its context has ended")
		}
	})
	return f
}

// next waits for an event, and checks that each change is one.
func (f *follower) next() source.Event {
	f.t.Helper()
	select {
	case ev := <-f.events:
		if f.last.Synced && !ev.Synced {
			f.t.Error("Synced became false again")
		}
		if !ev.Synced && len(ev.Changes) > 0 {
			f.t.Errorf("not synced, but %v", ev.Changes)
		}
		for _, c := range ev.Changes {
			old, ok := f.objects[c.Ref]
			switch {
			case c.Object == nil && !ok:
				f.t.Errorf("%s was removed, and did not exist", c.Ref)
			case c.Object == nil:
				delete(f.objects, c.Ref)
				continue
			case ok && reflect.DeepEqual(old, c.Object):
				f.t.Errorf("%s did not change", c.Ref)
			}
			f.objects[c.Ref] = c.Object
		}
		f.last = ev
		f.count++
		return ev
	case <-time.After(deadline):
		f.t.Fatalf("no event; the last was %+v", f.last)
		panic("unreachable")
	}
}

// until waits for the event after which cond holds.
func (f *follower) until(what string, cond func() bool) {
	f.t.Helper()
	end := time.Now().Add(deadline)
	for !cond() {
		if time.Now().After(end) {
			f.t.Fatalf("never %s; objects %v", what, f.names())
		}
		f.next()
	}
}

func (f *follower) names() []string {
	names := []string{}
	for ref := range f.objects {
		names = append(names, ref.Name)
	}
	slices.Sort(names)
	return names
}

// want waits for the next event, and checks its changes (+ added, - removed, ~ changed) and its problems, each
// by a part of its text.
func (f *follower) want(changes string, problems ...string) {
	f.t.Helper()
	had := make(map[service.Ref]bool)
	for ref := range f.objects {
		had[ref] = true
	}
	ev := f.next()
	var got []string
	for _, c := range ev.Changes {
		sign := "+"
		if c.Object == nil {
			sign = "-"
		} else if had[c.Ref] {
			sign = "~"
		}
		got = append(got, sign+c.Ref.Name)
	}
	if diff := cmp.Diff(strings.Fields(changes), got, byValue); diff != "" {
		f.t.Fatalf("changes (-want +got):\n%s", diff)
	}
	if len(ev.Problems) != len(problems) {
		f.t.Fatalf("problems are not %q:\n%v", problems, ev.Problems)
	}
	for i, p := range problems {
		if !strings.Contains(ev.Problems[i].String(), p) {
			f.t.Fatalf("problem %d is not %q: %s", i, p, ev.Problems[i])
		}
	}
}

func remove(t *testing.T, path ...string) {
	t.Helper()
	if err := os.RemoveAll(filepath.Join(path...)); err != nil {
		t.Fatal(err)
	}
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

func TestRunGoodFromTheStart(t *testing.T) {
	f := follow(t, New(folder(t, map[string]string{"a.yaml": web, "b.yaml": webSlice})))
	f.want("+web-1 +web")
	if !f.last.Synced {
		t.Error("not synced")
	}
}

func TestRunEmptyFolder(t *testing.T) {
	dir := t.TempDir()
	f := follow(t, New(dir))
	f.want("")
	if !f.last.Synced {
		t.Error("an empty folder is a complete state")
	}
	write(t, dir, "a.yaml", web)
	f.want("+web")
	remove(t, dir, "a.yaml")
	f.want("-web")
}

// Invalid manifests at the start are reported, and nothing is synced (R4) before they are valid.
func TestRunBadFromTheStart(t *testing.T) {
	dir := folder(t, map[string]string{"a.yaml": web, "b.yaml": "x"})
	f := follow(t, New(dir))
	f.want("", "b.yaml:1: want a Kubernetes object")
	if f.last.Synced {
		t.Error("synced")
	}
	write(t, dir, "b.yaml", "y: z")
	f.want("", "b.yaml:1: kind: missing")
	if f.last.Synced {
		t.Error("synced")
	}
	write(t, dir, "b.yaml", webSlice)
	f.want("+web-1 +web")
	if !f.last.Synced {
		t.Error("not synced")
	}
}

func TestRunNoFolderAtTheStart(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "not", "yet")
	f := follow(t, New(dir))
	f.want("", "no such file or directory")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	f.want("")
	write(t, dir, "a.yaml", web)
	f.want("+web")
}

// While one file is invalid, nothing of the directory changes, not even by a valid file; when all are valid,
// the difference is one event.
func TestFolderIsOneState(t *testing.T) {
	dir := folder(t, map[string]string{"a.yaml": named("a", "10.96.0.1"), "b.yaml": named("b", "10.96.0.2"), "c.yaml": named("c", "10.96.0.3")})
	f := follow(t, New(dir))
	f.want("+a +b +c")
	write(t, dir, "b.yaml", "bad")
	f.want("", "b.yaml:1: want a Kubernetes object")
	if !f.last.Synced {
		t.Error("the last valid state is not in use")
	}
	// All problems are reported, including the new one of another file.
	write(t, dir, "d.yaml", "bad too")
	f.want("", "b.yaml:1: want a Kubernetes object", "d.yaml:1: want a Kubernetes object")
	// These are valid, and must wait.
	write(t, dir, "a.yaml", named("a", "10.96.0.11"))
	remove(t, dir, "c.yaml")
	write(t, dir, "d.yaml", named("d", "10.96.0.4"))
	f.want("", "b.yaml:1: want a Kubernetes object")
	write(t, dir, "b.yaml", named("b", "10.96.0.2"))
	f.want("~a -c +d")
}

// A write that does not change an object is no change of it.
func TestUntouchedObjects(t *testing.T) {
	dir := folder(t, map[string]string{"a.yaml": web, "b.yaml": named("b", "10.96.0.2")})
	f := follow(t, New(dir))
	f.want("+b +web")
	write(t, dir, "a.yaml", "# a comment\n"+edit(t, web, "80", "0x50"))
	write(t, dir, "c.yaml", named("c", "10.96.0.3"))
	f.until("c", func() bool { return len(f.objects) == 3 })
	// Moved to another file; follower checks that no event reports it as changed.
	write(t, dir, "d.yaml", named("b", "10.96.0.2"))
	remove(t, dir, "b.yaml")
	write(t, dir, "c.yaml", named("c", "10.96.0.33"))
	f.until("c changed", func() bool {
		return f.objects[service.Ref{Kind: service.KindService, Namespace: "default", Name: "c"}].(*service.Service).ClusterIPs[0] == "10.96.0.33"
	})
	if diff := cmp.Diff([]string{"b", "c", "web"}, f.names()); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
}

func TestWarningsComeAndGo(t *testing.T) {
	dir := folder(t, map[string]string{"a.yaml": web})
	f := follow(t, New(dir))
	f.want("+web")
	write(t, dir, "b.yaml", "apiVersion: v1\nkind: Secret\n")
	f.want("", "warning: Secret")
	write(t, dir, "a.yaml", named("web", "10.96.0.2"))
	f.want("~web", "warning: Secret")
	remove(t, dir, "b.yaml")
	f.want("")
}

func TestDeletedFile(t *testing.T) {
	dir := folder(t, map[string]string{"a.yaml": web, "b.yaml": named("b", "10.96.0.2") + "---\n" + named("c", "10.96.0.3")})
	f := follow(t, New(dir))
	f.want("+b +c +web")
	remove(t, dir, "b.yaml")
	f.want("-b -c")
	remove(t, dir, "a.yaml")
	f.want("-web")
}

// A directory that is gone, or cannot be read, is not an empty directory.
func TestFolderGone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "manifests")
	rename(t, folder(t, map[string]string{"a.yaml": web}), dir)
	f := follow(t, New(dir))
	f.want("+web")

	rename(t, dir, dir+".away")
	f.want("", "no such file or directory")
	if err := os.Symlink("manifests", dir); err != nil {
		t.Fatal(err)
	}
	f.want("", "cannot be read: ")
	remove(t, dir)
	f.want("", "no such file or directory")
	rename(t, dir+".away", dir)
	f.want("")
	// It is still watched, and so is a new one in its place.
	write(t, dir, "b.yaml", named("b", "10.96.0.2"))
	f.want("+b")
	rename(t, dir, dir+".away")
	f.want("", "no such file or directory")
	rename(t, folder(t, map[string]string{"a.yaml": web, "c.yaml": named("c", "10.96.0.3")}), dir)
	f.want("-b +c")
	write(t, dir, "c.yaml", named("c", "10.96.0.33"))
	f.want("~c")
}

// Removing a folder removes its files first. All of that must happen within the quiet time, which is long here
// because the machine may be busy.
func TestFolderRemoved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "manifests")
	rename(t, folder(t, map[string]string{"a.yaml": web, "b.yaml": named("b", "10.96.0.2")}), dir)
	s := New(dir)
	s.timing.quiet, s.timing.atMost = 5*time.Second, time.Minute
	f := follow(t, s)
	f.want("+b +web")
	remove(t, dir)
	f.want("", "no such file or directory")
}

// An unreadable file counts as an invalid one.
func TestUnreadableFile(t *testing.T) {
	dir := folder(t, map[string]string{"a.yaml": web})
	f := follow(t, New(dir))
	f.want("+web")
	if err := os.Symlink("nothing", filepath.Join(dir, "b.yaml")); err != nil {
		t.Fatal(err)
	}
	f.want("", "b.yaml: cannot be read: the file that it links to does not exist")
	write(t, dir, "nothing", named("b", "10.96.0.2"))
	f.want("+b")
}
