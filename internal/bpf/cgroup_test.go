// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/needs"
)

// TestCgroupRoot (K6): a cgroup v2 hierarchy beside v1 ones is mounted for the agent. The test runs in a
// mount namespace of its own.
func TestCgroupRoot(t *testing.T) {
	needs.Root(t)
	if _, err := CgroupRoot("/proc"); err == nil || !strings.Contains(err.Error(), "not a cgroup v2 directory") {
		t.Errorf("/proc: %v", err)
	}
	if _, err := CgroupRoot("/nowhere"); err == nil || !strings.Contains(err.Error(), "not found") {
		t.Errorf("/nowhere: %v", err)
	}
	done := make(chan struct{})
	skip := ""
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlock: the thread ends with its namespace
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			t.Error(err)
			return
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); errors.Is(err, unix.EINVAL) {
			skip = "the root directory is not a mount point (chroot), so mounts cannot be private"
			return
		}
		for _, step := range []error{
			unix.Mount("none", "/sys/fs/cgroup", "tmpfs", 0, ""), // as systemd does for v1
			unix.Mount("none", "/run", "tmpfs", 0, ""),
		} {
			if step != nil {
				t.Error(step)
				return
			}
		}
		if _, err := CgroupRoot("/sys/fs/cgroup"); err == nil || !strings.Contains(err.Error(), "not a cgroup v2 directory") || strings.Contains(err.Error(), "/unified") {
			t.Errorf("v1 without v2: %v", err)
		}
		for range 2 {
			if root, err := CgroupRoot(""); root != OwnCgroup || err != nil {
				t.Errorf("beside v1: %s, %v", root, err)
			}
		}
		if _, err := os.Stat(filepath.Join(OwnCgroup, "cgroup.procs")); err != nil {
			t.Errorf("not the root of a cgroup v2 hierarchy: %v", err)
		}
		if err := unmountOwnCgroup(); err != nil {
			t.Error(err)
		}
		if err := errors.Join(os.Mkdir("/sys/fs/cgroup/unified", 0o755), unix.Mount("none", "/sys/fs/cgroup/unified", "cgroup2", 0, "")); err != nil {
			t.Error(err)
		}
		if err := os.MkdirAll("/sys/fs/cgroup/memory/kubepods", 0o755); err != nil {
			t.Error(err)
		}
		for path, want := range map[string]string{
			"/sys/fs/cgroup":                  "not a cgroup v2 directory: cgroup v1 is mounted there, and v2 beside it: set --cgroup-root to /sys/fs/cgroup/unified, or to a directory in it",
			"/sys/fs/cgroup/memory/kubepods":  "not a cgroup v2 directory: cgroup v1 is mounted there, and v2 beside it: set --cgroup-root to /sys/fs/cgroup/unified, or to a directory in it",
			"/sys/fs/cgroup/kubepods":         "not found: cgroup v1 is mounted there, and v2 beside it: set --cgroup-root to /sys/fs/cgroup/unified, or to a directory in it",
			"/sys/fs/cgroup/unified/kubepods": "not found: make it with mkdir",
			"/etc":                            "not a cgroup v2 directory: set --cgroup-root to /sys/fs/cgroup/unified, or to a directory in it",
		} {
			if _, err := CgroupRoot(path); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s on a hybrid node: %v, want %q", path, err, want)
			}
		}
		if err := unix.Mount("none", "/sys/fs/cgroup", "cgroup2", 0, ""); err != nil {
			t.Error(err)
		}
		if root, err := CgroupRoot(""); root != "/sys/fs/cgroup" || err != nil {
			t.Errorf("pure v2: %s, %v", root, err)
		}
		if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
			t.Error(err)
		}
		if _, err := CgroupRoot(""); err == nil || !strings.Contains(err.Error(), "(LXC, systemd-nspawn)") {
			t.Errorf("in a cgroup namespace: %v", err)
		}
		if root, err := CgroupRoot("/sys/fs/cgroup"); root != "/sys/fs/cgroup" || err != nil {
			t.Errorf("in a cgroup namespace, with --cgroup-root: %s, %v", root, err)
		}
	}()
	<-done
	if skip != "" {
		t.Skip(skip)
	}
}
