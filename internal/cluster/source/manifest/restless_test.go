// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"beeline.io/beeline/internal/cluster/service"
)

// restless calls change repeatedly until the test ends.
func restless(t *testing.T, change func(i int) error) {
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			if err := change(i); err != nil {
				done <- err
				return
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// Files that are constantly replaced, each as a whole, do not prevent the others from being read.
func TestFilesReplacedWithoutEnd(t *testing.T) {
	files := map[string]string{}
	for i := range 200 {
		files[fmt.Sprintf("%d.yaml", i)] = named(fmt.Sprintf("web-%d", i), fmt.Sprintf("10.96.1.%d", i))
	}
	dir := folder(t, files)
	restless(t, func(i int) error {
		hidden := filepath.Join(dir, ".next")
		name := fmt.Sprintf("%d.yaml", i%100)
		if err := os.WriteFile(hidden, []byte(files[name]), 0o644); err != nil {
			return err
		}
		return os.Rename(hidden, filepath.Join(dir, name))
	})
	s := New(dir)
	for range 20 {
		state, err := s.Load()
		if err != nil || len(state.Objects) != len(files) {
			t.Fatalf("%d objects (%v), want %d", len(state.Objects), err, len(files))
		}
	}
}

// A file written in place is not mistaken for a replaced one: it may look complete at any line.
func TestFileWrittenWithoutEnd(t *testing.T) {
	dir := folder(t, map[string]string{"a.yaml": web})
	f, err := os.OpenFile(filepath.Join(dir, "a.yaml"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	s := New(dir)
	s.timing.retry = time.Microsecond
	reads := 0
	s.whileReading = func() {
		reads++
		if _, err := f.WriteString("# more\n"); err != nil {
			t.Error(err)
		}
	}
	want := dir + ": changed during each of 8 attempts to read it; write files under a hidden name and rename them when they are complete"
	if _, err := s.Load(); err == nil || err.Error() != want || reads != 8 {
		t.Errorf("after %d reads: %v, want %q", reads, err, want)
	}
}

// A second write that stat does not show is detected by its notification.
func TestWriteThatStatDoesNotTell(t *testing.T) {
	dir := folder(t, map[string]string{"a.yaml": named("a", "10.96.0.1"), "b.yaml": named("b", "10.96.0.2")})
	s := New(dir)
	entries, err := list(dir)
	if err != nil {
		t.Fatal(err)
	}
	s.readEntries(entries, changes{all: true})
	first := maps.Clone(s.files)
	write(t, dir, "a.yaml", named("a", "10.96.0.3"))
	write(t, dir, "b.yaml", named("b", "10.96.0.4"))
	s.readEntries(entries, changes{names: map[string]bool{"a.yaml": true}})
	second := s.files
	if second["a.yaml"].sum == first["a.yaml"].sum {
		t.Error("a.yaml had a notification and was not read again")
	}
	if second["b.yaml"] != first["b.yaml"] {
		t.Error("b.yaml looks the same, had no notification, and was read again")
	}
}

// A directory that is repeatedly replaced through its link is read as of one moment: never some files of one
// and some of the other.
func TestFolderIsReadWhole(t *testing.T) {
	root := t.TempDir()
	const files, folders = 30, 100
	current := filepath.Join(root, "current")
	for n := range folders {
		dir := filepath.Join(root, fmt.Sprint(n))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for i := range files {
			write(t, dir, fmt.Sprintf("%d.yaml", i), named(fmt.Sprintf("web-%d", i), fmt.Sprintf("10.96.%d.%d", n, i)))
		}
	}
	exchange := func(i int) error {
		next := filepath.Join(root, "next")
		if err := os.Symlink(fmt.Sprint(i%folders), next); err != nil {
			return err
		}
		return os.Rename(next, current)
	}
	if err := exchange(0); err != nil {
		t.Fatal(err)
	}
	restless(t, func(i int) error {
		time.Sleep(200 * time.Microsecond)
		return exchange(i + 1)
	})
	s, seen := New(current), map[string]bool{}
	for end := time.Now().Add(deadline); len(seen) < 20 && time.Now().Before(end); {
		state, err := s.Load()
		if err != nil {
			continue // the directory kept changing, which is reported
		}
		versions := map[string]int{}
		for _, o := range state.Objects {
			ip := o.(*service.Service).ClusterIPs[0]
			versions[ip[:strings.LastIndex(ip, ".")]]++
		}
		if len(versions) != 1 || len(state.Objects) != files {
			t.Fatalf("mixed states: %v", versions)
		}
		for v := range versions {
			seen[v] = true
		}
	}
	if len(seen) < 20 {
		t.Errorf("only %d states seen", len(seen))
	}
}
