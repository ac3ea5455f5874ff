// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/needs"
)

func TestOpenSaysWhatHasVanished(t *testing.T) {
	needs.Root(t)
	r := settle(t, nil)
	r.leave()
	file := filepath.Join(t.TempDir(), "no namespace")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{r.path, file, "/proc/self/ns/mnt"} {
		if _, err := Open(path); !errors.Is(err, ErrVanished) {
			t.Errorf("%s: %v, want ErrVanished", path, err)
		}
	}
}

// Do runs on a thread in the namespace, and returns the function's error; no thread stays there.
func TestDo(t *testing.T) {
	needs.Root(t)
	r := settle(t, nil)
	defer r.leave()
	ns := r.open(t)
	defer ns.Close()
	failure := errors.New("failure")
	for range 50 {
		err := ns.Do(func() error {
			if inode, cookie, err := here(); err != nil || inode != r.inode || cookie != r.cookie {
				t.Errorf("in namespace %d with cookie %d (%v), want %d with %d", inode, cookie, err, r.inode, r.cookie)
			}
			return failure
		})
		if err != failure {
			t.Errorf("Do returns %v", err)
		}
		if inode, _, err := here(); err != nil || inode == r.inode {
			t.Fatalf("the caller is in namespace %d (%v)", inode, err)
		}
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	inside := 0
	for _, task := range tasks {
		var st unix.Stat_t
		if unix.Stat("/proc/self/task/"+task.Name()+"/ns/net", &st) == nil && st.Ino == r.inode {
			inside++
		}
	}
	if inside != 1 { // the resident
		t.Errorf("%d threads are in the namespace, want 1", inside)
	}
}

// A thread that cannot return to its namespace is discarded, not reused.
func TestDoDiscardsAThreadThatIsLost(t *testing.T) {
	needs.Root(t)
	r := settle(t, nil)
	defer r.leave()
	ns := r.open(t)
	defer ns.Close()
	var lost int
	err := ns.Do(func() error {
		lost = unix.Gettid()
		return unix.Setresuid(-1, nobody, -1) // this thread alone loses its capabilities
	})
	if err != nil {
		t.Fatal(err)
	}
	if lost == unix.Getpid() {
		return // the first thread of a process sleeps forever instead of ending
	}
	awaitEnd(t, fmt.Sprintf("/proc/self/task/%d/ns/net", lost))
}

const nobody = 65534
