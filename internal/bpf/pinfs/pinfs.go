// SPDX-License-Identifier: Apache-2.0

// Package pinfs mounts and locks directories for pins on BPF file systems.
package pinfs

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// System is Linux's directory for a BPF file system.
const System = "/sys/fs/bpf"

// mountedByUs is a directory in the bpffs directory that marks a file system mounted by Prepare, so that Unmount
// unmounts it.
const mountedByUs = "mounted_by_beeline"

// A LockedError is returned if another process uses the bpffs directory.
type LockedError struct {
	Path string
	// PID of the process, 0 if it is in another PID namespace.
	PID int
	// Drain means that the process is no agent, but `beeline cleanup --drain`.
	Drain bool
}

func (e *LockedError) Error() string {
	switch {
	case e.Drain && e.PID == 0:
		return fmt.Sprintf("`beeline cleanup --drain` is running on %s, in another PID namespace: wait for its end, end it there, or give another --pins", e.Path)
	case e.Drain:
		return fmt.Sprintf("`beeline cleanup --drain` is running on %s with pid %d: wait for its end, end it (`kill %d`), or give another --pins", e.Path, e.PID, e.PID)
	case e.PID == 0:
		return fmt.Sprintf("another agent is using %s: stop it, or give another --pins", e.Path)
	}
	return fmt.Sprintf("an agent is running on %s with pid %d: stop it, or give another --pins", e.Path, e.PID)
}

// CheckPath returns an error for a path that cannot be a directory on a BPF file system.
func CheckPath(path string) error {
	if !filepath.IsAbs(path) || path != filepath.Clean(path) {
		return fmt.Errorf("--pins %s: not an absolute path in its shortest form", path)
	}
	if strings.Contains(path[1:], ".") {
		// The file system rejects names with dots ("reserved for future extensions").
		on, _ := IsFS(ExistingParent(path), unix.BPF_FS_MAGIC)
		if on || strings.HasPrefix(path, System+"/") {
			return fmt.Errorf("--pins %s: a BPF file system does not allow names with dots", path)
		}
	}
	return nil
}

// Prepare makes path a directory on a BPF file system. If it is not on one, it mounts one: at
// /sys/fs/bpf, which Linux makes for this purpose, if path is below it, else at path itself.
func Prepare(path string, directories []string) error {
	if err := CheckPath(path); err != nil {
		return err
	}
	on, err := IsFS(ExistingParent(path), unix.BPF_FS_MAGIC)
	if err != nil {
		return fmt.Errorf("--pins %s: %w", path, err)
	}
	if !on {
		at := mountPoint(path)
		if err := refusePrivate(path, at); err != nil {
			return err
		}
		if at == path && path != System {
			if err := os.MkdirAll(path, 0o700); err != nil {
				return fmt.Errorf("--pins %s: not on a BPF file system, and a directory to mount one at cannot be created: %w; "+
					"use a directory under %s, such as the default", path, err, System)
			}
			if err := refuseUsed(path); err != nil {
				return err
			}
		}
		if err := unix.Mount("bpf", at, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
			return fmt.Errorf("mount a BPF file system at %s: %w", at, err)
		}
		if err := os.MkdirAll(filepath.Join(path, mountedByUs), 0o700); err != nil {
			return fmt.Errorf("--pins: %w", err)
		}
	}
	for _, dir := range directories {
		if err := os.MkdirAll(filepath.Join(path, dir), 0o700); err != nil {
			return fmt.Errorf("--pins: %w", err)
		}
	}
	return nil
}

// refusePrivate returns an error if a file system mounted here would end with the agent's container, and the pins
// with it. That is so in a mount namespace other than that of the parent process, such as a container runtime on the
// node, unless the mount is shared (mount_namespaces(7)). Outside the parent's PID namespace this cannot be seen.
func refusePrivate(path, at string) error {
	own, err := os.Readlink("/proc/self/ns/mnt")
	parents, parentErr := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", os.Getppid()))
	if err != nil || parentErr != nil || own == parents || shared(ExistingParent(at)) {
		return nil
	}
	return fmt.Errorf("--pins %s: not on a BPF file system, and one mounted in the agent's own mount namespace would end with it: "+
		"mount one on the node (`mount -t bpf bpf %s`; systemd does it at boot), and make it visible to the agent; below `ip netns exec` no mounts of /sys are visible: use `nsenter --net=/run/netns/NAME` instead", path, System)
}

// shared reports whether the mount of a path is shared. The last mount at the longest path counts.
func shared(path string) (is bool) {
	longest := 0
	eachMount(func(point string, tags []string, _ string) {
		if len(point) < longest || !within(path, point) {
			return
		}
		longest = len(point)
		is = slices.ContainsFunc(tags, func(tag string) bool { return strings.HasPrefix(tag, "shared:") })
	})
	return is
}

func within(path, mount string) bool {
	return mount == "/" || path == mount || strings.HasPrefix(path, mount+"/")
}

// refuseUsed returns an error if a mount would hide files in a directory.
func refuseUsed(path string) error {
	entries, err := os.ReadDir(path)
	if err != nil {
		return fmt.Errorf("--pins %s: %w", path, err)
	}
	if len(entries) > 0 {
		return fmt.Errorf("--pins %s: an ordinary directory with files such as %s, which a BPF file system mounted there would hide: "+
			"use a directory under %s, or an empty one", path, entries[0].Name(), System)
	}
	return nil
}

// mountPoint returns where a BPF file system for a directory is mounted.
func mountPoint(path string) string {
	if strings.HasPrefix(path+"/", System+"/") {
		return System
	}
	return path
}

// Mounted reports whether Prepare mounted the file system of a directory.
func Mounted(path string) bool {
	_, err := os.Stat(filepath.Join(path, mountedByUs))
	return err == nil
}

// Unmount unmounts the file system that Prepare mounted, unless it is used otherwise.
func Unmount(path string) error {
	at := mountPoint(path)
	if err := os.Remove(filepath.Join(path, mountedByUs)); err != nil {
		return err
	}
	if path != at {
		os.Remove(path)
	}
	left, err := os.ReadDir(at)
	for _, e := range left {
		if !strings.HasSuffix(e.Name(), ".debug") { // the kernel's, in every bpffs mount
			return err
		}
	}
	if err := errors.Join(err, unix.Unmount(at, 0)); err != nil {
		return fmt.Errorf("unmount %s: %w", at, err)
	}
	if at != System {
		return os.Remove(at)
	}
	return nil
}

// ExistingParent returns the longest part of a path that exists.
func ExistingParent(path string) string {
	for path != "/" {
		if _, err := os.Stat(path); err == nil {
			break
		}
		path = filepath.Dir(path)
	}
	return path
}

// IsFS reports whether a path is on a file system with a magic number of statfs(2).
func IsFS(path string, magic int64) (bool, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return false, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	return int64(st.Type) == magic, nil
}

// Lock locks the directory for this process, until the file is closed or the process ends.
func Lock(path string) (*os.File, error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		defer dir.Close()
		_, pid := LockHolder(dir)
		drain := DrainOf(path)
		return nil, &LockedError{Path: path, PID: pid, Drain: drain != nil && drain.Running}
	}
	if err != nil {
		dir.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return dir, nil
}

// Holder reports whether an agent has locked a bpffs directory, and returns its pid, 0 if it is in another
// PID namespace.
func Holder(path string) (held bool, pid int) {
	if drain := DrainOf(path); drain != nil && drain.Running {
		return false, 0
	}
	return holder(path)
}

// holder reports whether a process has locked a bpffs directory, an agent or another, and returns its pid.
func holder(path string) (held bool, pid int) {
	dir, err := os.Open(path)
	if err != nil {
		return false, 0
	}
	defer dir.Close()
	return LockHolder(dir)
}

// LockHolder looks up the owner of a flock in /proc/locks, whose lines read
// "1: FLOCK ADVISORY WRITE 4711 00:1c:1234 0 EOF" (proc(5)).
func LockHolder(f *os.File) (held bool, pid int) {
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil {
		return false, 0
	}
	inode := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	locks, err := os.Open("/proc/locks")
	if err != nil {
		return false, 0
	}
	defer locks.Close()
	for lines := bufio.NewScanner(locks); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) >= 6 && fields[1] == "FLOCK" && fields[5] == inode {
			pid, _ := strconv.Atoi(fields[4])
			return true, max(pid, 0)
		}
	}
	return false, 0
}

// Mounts returns the mount points of BPF file systems.
func Mounts() []string { return MountsOf("bpf") }

// MountsOf returns the mount points of file systems of a type, as /proc/self/mountinfo names it.
func MountsOf(wanted string) (all []string) {
	eachMount(func(point string, _ []string, kind string) {
		if kind == wanted {
			all = append(all, point)
		}
	})
	return all
}

// eachMount calls f with the mount point, the optional fields and the type of each mount in this process's
// namespace. In /proc/self/mountinfo (proc(5)) the fifth field is the mount point, the optional ones follow the
// sixth, and the type follows a hyphen.
func eachMount(f func(point string, tags []string, kind string)) {
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		mount, rest, _ := strings.Cut(lines.Text(), " - ")
		kind, _, _ := strings.Cut(rest, " ")
		if fields := strings.Fields(mount); len(fields) >= 6 {
			f(fields[4], fields[6:], kind)
		}
	}
}
