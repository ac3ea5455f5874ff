// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/needs"
)

// all collects what All returns, by inode, and fails on duplicates.
func all(t testing.TB) map[uint64]uint64 {
	t.Helper()
	found := map[uint64]uint64{}
	for ns, err := range All() {
		var unreadable *UnreadableError
		if errors.As(err, &unreadable) {
			continue // of processes of the machine
		}
		if err != nil {
			t.Fatal(err)
		}
		cookie, err := ns.Cookie()
		if err != nil {
			t.Fatal(err)
		}
		if _, twice := found[ns.Inode]; twice {
			t.Errorf("namespace %d is returned twice", ns.Inode)
		}
		found[ns.Inode] = cookie
	}
	return found
}

func (r *resident) want(t *testing.T, when string) {
	t.Helper()
	if got, ok := all(t)[r.inode]; !ok || got != r.cookie {
		t.Errorf("%s: namespace %d has cookie %d (found: %t), want %d", when, r.inode, got, ok, r.cookie)
	}
}

func TestAllFindsNamespacesOfThreads(t *testing.T) {
	needs.Root(t)
	r := settle(t, nil)
	defer r.leave()
	r.want(t, "a thread is in it")
	own, cookie, err := here()
	if err != nil {
		t.Fatal(err)
	}
	if got, ok := all(t)[own]; !ok || got != cookie {
		t.Errorf("the test's own namespace %d has cookie %d (found: %t), want %d", own, got, ok, cookie)
	}
}

// The first thread of a process has ended; another one lives on in a namespace.
func TestAllFindsNamespacesOfHeadlessProcesses(t *testing.T) {
	needs.Root(t)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), headless+"=1")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		cmd.Process.Kill()
		cmd.Wait()
	}()
	r := &resident{}
	if _, err := fmt.Fscan(out, &r.inode, &r.cookie); err != nil {
		t.Fatal(err)
	}
	awaitEnd(t, fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid)) // it ends after it has printed that
	r.want(t, "the first thread has ended")
}

// headless in the environment makes this program a process without a first thread.
const headless = "BEELINE_TEST_HEADLESS"

func init() {
	if os.Getenv(headless) == "" {
		return
	}
	runtime.LockOSThread() // init runs on the first thread
	told := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_NEWNET)
		inode, cookie, hereErr := here()
		if err = errors.Join(err, hereErr); err == nil {
			_, err = fmt.Println(inode, cookie)
		}
		told <- err
		select {}
	}()
	if err := <-told; err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	unix.RawSyscall(unix.SYS_EXIT, 0, 0, 0)
}

// A namespace that is only mounted, at a path with characters that the kernel escapes.
func TestAllFindsMountedNamespaces(t *testing.T) {
	needs.Root(t)
	mount := filepath.Join(t.TempDir(), "a b\tc\\d")
	if err := os.WriteFile(mount, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r := settle(t, func(path string) error { return unix.Mount(path, mount, "", unix.MS_BIND, "") })
	r.want(t, "a thread is in it, and it is mounted")
	r.leave()
	r.want(t, "it is only mounted")
	if err := unix.Unmount(mount, 0); err != nil {
		t.Fatal(err)
	}
	// Another process that looks at all namespaces, such as an agent, may be in it briefly.
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if slices.Contains(slices.Collect(maps.Values(all(t))), r.cookie) {
			if time.Now().After(end) {
				t.Fatalf("namespace %d is still found after the unmount", r.inode)
			}
			continue
		}
		return
	}
}

// The namespace stays open during its iteration, even if its last thread leaves it.
func TestNamespaceOutlivesItsResidents(t *testing.T) {
	needs.Root(t)
	r := settle(t, nil)
	for ns, err := range All() {
		if err != nil || ns.Inode != r.inode {
			continue
		}
		r.leave()
		if cookie, err := ns.Cookie(); err != nil || cookie != r.cookie {
			t.Errorf("the cookie is %d (%v), want %d", cookie, err, r.cookie)
		}
		return
	}
	t.Errorf("namespace %d was not found", r.inode)
}

// While namespaces appear and vanish, All returns no error and does not stop early.
func TestAllWhileNamespacesComeAndGo(t *testing.T) {
	needs.Root(t)
	r, stop, stopped := settle(t, nil), make(chan struct{}), make(chan struct{})
	defer r.leave()
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				settle(t, nil).leave()
			}
		}
	}()
	for range 20 {
		r.want(t, "while others come and go")
	}
	close(stop)
	<-stopped
}

// BenchmarkAll measures one pass over 500 processes and 100 namespaces more than this machine has, with and
// without entering each.
func BenchmarkAll(b *testing.B) {
	needs.Root(b)
	for range 100 {
		defer settle(b, nil).leave()
	}
	for range 500 {
		cmd := exec.Command("sleep", "infinity")
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		defer func() {
			cmd.Process.Kill()
			cmd.Wait()
		}()
	}
	for name, visit := range map[string]func(*Namespace) error{
		"find":  func(*Namespace) error { return nil },
		"enter": func(ns *Namespace) error { return ns.Do(func() error { return nil }) },
	} {
		b.Run(name, func(b *testing.B) {
			n := 0
			for b.Loop() {
				n = 0
				for ns, err := range All() {
					if err != nil {
						continue
					}
					if err := visit(ns); err != nil {
						b.Fatal(err)
					}
					n++
				}
			}
			b.ReportMetric(float64(n), "namespaces")
		})
	}
}
