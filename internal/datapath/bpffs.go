// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// systemBPFFS is Linux's directory for a BPF file system.
const systemBPFFS = "/sys/fs/bpf"

// pinDirectories are the subdirectories of the bpffs directory.
var pinDirectories = []string{tablesDirectory, "links", "programs"}

// mountedByUs is a directory in the bpffs directory that marks a file system mounted by prepareBPFFS, so
// that Cleanup unmounts it.
const mountedByUs = "mounted_by_beeline"

// A LockedError is returned if another process uses the bpffs directory.
type LockedError struct {
	Path string
	// PID of the agent, 0 if it is in another PID namespace.
	PID int
}

func (e *LockedError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("another agent is using %s: stop it, or give this one its own --pins", e.Path)
	}
	return fmt.Sprintf("an agent is running on %s with pid %d: stop it, or give this one its own --pins", e.Path, e.PID)
}

// CheckBPFFSPath returns an error for a path that cannot be a directory on a BPF file system.
func CheckBPFFSPath(path string) error {
	if !filepath.IsAbs(path) || path != filepath.Clean(path) {
		return fmt.Errorf("--pins %s: not an absolute path in its shortest form", path)
	}
	if strings.Contains(path[1:], ".") {
		// The file system rejects names with dots ("reserved for future extensions").
		on, _ := isFS(existingParent(path), unix.BPF_FS_MAGIC)
		if on || strings.HasPrefix(path, systemBPFFS+"/") {
			return fmt.Errorf("--pins %s: a BPF file system does not allow names with dots", path)
		}
	}
	return nil
}

// prepareBPFFS makes path a directory on a BPF file system. If it is not on one, it mounts one: at
// /sys/fs/bpf, which Linux makes for this purpose, if path is below it, else at path itself.
func prepareBPFFS(path string) error {
	if err := CheckBPFFSPath(path); err != nil {
		return err
	}
	on, err := isFS(existingParent(path), unix.BPF_FS_MAGIC)
	if err != nil {
		return fmt.Errorf("--pins %s: %w", path, err)
	}
	if !on {
		at := mountPoint(path)
		if at == path && path != systemBPFFS {
			if err := os.MkdirAll(path, 0o700); err != nil {
				return fmt.Errorf("--pins %s: not on a BPF file system, and a directory to mount one at cannot be created: %w; "+
					"use a directory under %s, such as the default", path, err, systemBPFFS)
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
	for _, dir := range pinDirectories {
		if err := os.MkdirAll(filepath.Join(path, dir), 0o700); err != nil {
			return fmt.Errorf("--pins: %w", err)
		}
	}
	return nil
}

// refuseUsed returns an error if a mount would hide files in a directory.
func refuseUsed(path string) error {
	entries, err := os.ReadDir(path)
	if err != nil {
		return fmt.Errorf("--pins %s: %w", path, err)
	}
	if len(entries) > 0 {
		return fmt.Errorf("--pins %s: an ordinary directory with files such as %s, which a BPF file system mounted there would hide: "+
			"use a directory under %s, or an empty one", path, entries[0].Name(), systemBPFFS)
	}
	return nil
}

// hasPins reports whether a bpffs directory has pins of an agent.
func hasPins(path string) bool {
	for _, dir := range []string{"tables_v*", "links", "programs"} {
		if pins, _ := filepath.Glob(filepath.Join(path, dir, "*")); len(pins) > 0 {
			return true
		}
	}
	return false
}

// mountPoint returns where a BPF file system for a directory is mounted.
func mountPoint(path string) string {
	if strings.HasPrefix(path+"/", systemBPFFS+"/") {
		return systemBPFFS
	}
	return path
}

func existingParent(path string) string {
	for path != "/" {
		if _, err := os.Stat(path); err == nil {
			break
		}
		path = filepath.Dir(path)
	}
	return path
}

func isFS(path string, magic int64) (bool, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return false, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	return int64(st.Type) == magic, nil
}

// lockBPFFS locks the directory for this process, until the file is closed or the process ends.
func lockBPFFS(path string) (*os.File, error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		defer dir.Close()
		_, pid := lockHolder(dir)
		return nil, &LockedError{Path: path, PID: pid}
	}
	if err != nil {
		dir.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return dir, nil
}

// AgentRunning reports whether an agent uses a bpffs directory, and returns its pid, 0 if it is in another
// PID namespace.
func AgentRunning(bpffs string) (running bool, pid int) {
	dir, err := os.Open(bpffs)
	if err != nil {
		return false, 0
	}
	defer dir.Close()
	return lockHolder(dir)
}

// lockHolder looks up the owner of a flock in /proc/locks, whose lines read
// "1: FLOCK ADVISORY WRITE 4711 00:1c:1234 0 EOF" (proc(5)).
func lockHolder(f *os.File) (held bool, pid int) {
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
