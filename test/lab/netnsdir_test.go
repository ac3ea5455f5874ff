// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Each case runs in a mount namespace of its own with an empty /run, which stands for a machine without any
// named network namespace so far.
var mountCases = map[string]func(name string) error{
	// A lab can be removed after the machine's first `ip netns add`.
	"a lab before ip netns add": func(name string) error {
		if _, err := Up(Config{Name: name}); err != nil {
			return err
		}
		if out, err := exec.Command("ip", "netns", "add", "later").CombinedOutput(); err != nil {
			return fmt.Errorf("ip netns add: %w: %s", err, out)
		}
		return errors.Join(Down(name), wantNames("later"))
	},
	// A lab can be created and removed after `ip netns add`, whose name stays.
	"a lab after ip netns add": func(name string) error {
		if out, err := exec.Command("ip", "netns", "add", "before").CombinedOutput(); err != nil {
			return fmt.Errorf("ip netns add: %w: %s", err, out)
		}
		if _, err := Up(Config{Name: name}); err != nil {
			return err
		}
		return errors.Join(Down(name), wantNames("before"))
	},
	// Names from before the first lab, mounted without iproute2, stay removable.
	"a lab after a name without a mount": func(name string) error {
		old := filepath.Join(netnsDir, "old")
		if err := createNetNS(old, func() error { return nil }); err != nil {
			return err
		}
		if _, err := Up(Config{Name: name}); err != nil {
			return err
		}
		if !isNetNS(old) {
			return errors.New("the existing name has lost its namespace")
		}
		return errors.Join(Down(name), removeNetNS(old), wantNames())
	},
	// Leftovers that nobody can remove are named in a warning and do not keep a new lab from being created.
	"a lab beside leftovers that stay": func(name string) error {
		if err := leaveBusy("tleft"); err != nil {
			return err
		}
		var warned error
		l, err := Up(Config{Name: name, Temporary: true, Warn: func(err error) { warned = err }})
		if err != nil {
			return err
		}
		if warned == nil || !contains(warned, "lab tleft") || !contains(warned, "reboot") {
			return fmt.Errorf("the warning is %v, want one that names lab tleft and says what to do", warned)
		}
		return l.Down()
	},
	// The remedy in the message works.
	"leftovers, and what the message says": func(string) error {
		if err := leaveBusy("tleft"); err != nil {
			return err
		}
		if err := Down("tleft"); err == nil {
			return errors.New("the leftovers can be removed: the test proves nothing")
		}
		if err := exec.Command("umount", "--lazy", netnsDir).Run(); err != nil {
			return err
		}
		return errors.Join(Down("tleft"), wantNames())
	},
}

func TestNetNSDirectory(t *testing.T) {
	for what := range mountCases {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			cmd := part(t, partMounts, newName(t), what)
			cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
			var said strings.Builder
			cmd.Stderr = &said
			err := cmd.Run()
			if errors.Is(err, unix.EINVAL) {
				t.Skip("the root directory is no mount point (chroot), so mounts cannot be private")
			}
			if err != nil {
				t.Errorf("%v: %s", err, said.String())
			}
		})
	}
}

// inOwnRun gives this process an empty /run and runs a case, in a mount namespace other than the machine's.
func inOwnRun(name, what string) error {
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return err
	}
	parent, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", os.Getppid()))
	if err != nil {
		return err
	}
	if own == parent {
		return errors.New("the mount namespace is the parent's")
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, ""); err != nil {
		return err
	}
	return mountCases[what](name)
}

// leaveBusy leaves a lab without an owner, with a name that a later mount of the directory keeps from being
// removed: the result of `ip netns add` with labs of earlier versions.
func leaveBusy(name string) error {
	if err := os.MkdirAll(stateDir(name), 0o755); err != nil {
		return err
	}
	if err := createNetNS(netnsPath(name, "a1"), func() error { return nil }); err != nil {
		return err
	}
	if out, err := exec.Command("ip", "netns", "add", "later").CombinedOutput(); err != nil {
		return fmt.Errorf("ip netns add: %w: %s", err, out)
	}
	return exec.Command("ip", "netns", "delete", "later").Run()
}

// wantNames checks the names of network namespaces on the machine.
func wantNames(want ...string) error {
	entries, err := os.ReadDir(netnsDir)
	if err != nil {
		return err
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if strings.Join(names, " ") != strings.Join(want, " ") {
		return fmt.Errorf("%s holds %q, want %q", netnsDir, names, want)
	}
	return nil
}
