// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/needs"
)

// Tests that need a process to be killed start this binary again in one of these parts, named by the first
// argument like lab.Main's helpers.
const (
	partUp     = "test-up"     // creates lab argv[1], kills itself at step argv[2]
	partOwner  = "test-owner"  // creates lab argv[1] with everything that can run in it, and waits
	partMounts = "test-mounts" // in a mount namespace of its own, see inOwnRun
)

func TestMain(m *testing.M) {
	Main()
	switch os.Args[0] {
	case partUp:
		upAndDie(os.Args[1], os.Args[2])
	case partOwner:
		ownAndWait(os.Args[1])
	case partMounts:
		exitOn(inOwnRun(os.Args[1], os.Args[2]))
	default:
		os.Exit(m.Run())
	}
}

// part starts this binary in one of the parts above.
func part(t *testing.T, argv ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Args, cmd.Stderr = argv, os.Stderr
	return cmd
}

func upAndDie(name, last string) {
	left, err := strconv.Atoi(last)
	if err == nil {
		_, err = Up(Config{Name: name, progress: func() {
			if left--; left == 0 {
				unix.Kill(os.Getpid(), unix.SIGKILL)
				select {}
			}
		}})
	}
	exitOn(err)
	os.Exit(0)
}

func ownAndWait(name string) {
	l, err := Up(Config{Name: name, Temporary: true})
	exitOn(err)
	exitOn(l.StartServers())
	_, err = l.Host("a1").Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	exitOn(err)
	exitOn(l.Host("node-a").Command(context.Background(), "sleep", "600").Start())
	fmt.Println("ready")
	io.ReadAll(os.Stdin)
}

func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// patience is how long a test waits for an event: far longer than it takes, because a busy machine may delay a
// process for many seconds.
const patience = time.Minute

// withTimeout is a context that ends with the test or after d.
func withTimeout(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// eventually fails the test unless ok becomes true within twice the patience: a connection that was cut off
// keeps the kernel from destroying its namespace until its retransmissions have failed (tcp_orphan_retries,
// about 100 s).
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v in vain for this: %s", 2*patience, what)
		}
	}
}

// newName reserves a random name for a lab that the test creates itself.
func newName(t *testing.T) string {
	t.Helper()
	needs.Root(t)
	cfg := Config{}
	if err := cfg.complete(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Down(cfg.Name); err != nil {
			t.Errorf("taking lab %s down: %v", cfg.Name, err)
		}
	})
	return cfg.Name
}

func contains(err error, text string) bool { return strings.Contains(err.Error(), text) }
