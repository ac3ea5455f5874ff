// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// CgroupLayout is the kubelet's naming scheme for cgroups of pods.
type CgroupLayout string

const (
	// LayoutSystemd is the layout of the kubelet's systemd cgroup driver:
	// kubepods.slice/kubepods-burstable.slice/...-pod<uid>.slice/cri-containerd-<id>.scope
	LayoutSystemd CgroupLayout = "systemd"
	// LayoutCgroupfs is the layout of its cgroupfs driver: kubepods/burstable/pod<uid>/<id>
	LayoutCgroupfs CgroupLayout = "cgroupfs"
)

// findCgroup2 returns the mount point of the cgroup2 hierarchy, or "". It is the only hierarchy on a pure v2
// machine, and exists besides v1 on a hybrid one.
func findCgroup2() (string, error) {
	list, err := mounts()
	if err != nil {
		return "", err
	}
	for _, m := range list {
		// Labs on a machine with only v1 have mounts of their own.
		if m.fstype == "cgroup2" && !strings.HasPrefix(m.path, stateRoot+"/") &&
			hasFileSystem(m.path, unix.CGROUP2_SUPER_MAGIC) {
			return m.path, nil
		}
	}
	return "", nil
}

// mountCgroup2 mounts the cgroup2 hierarchy at dir, for machines that use v1 only.
func mountCgroup2(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("cgroup2", dir, "cgroup2", 0, ""); err != nil {
		return fmt.Errorf("mounting cgroup2 at %s (needs CAP_SYS_ADMIN and CONFIG_CGROUPS): %w", dir, err)
	}
	return nil
}

// labCgroup is the directory of all of a lab's cgroups.
func labCgroup(mount, lab string) string { return filepath.Join(mount, "beeline-lab-"+lab) }

// hostCgroup is the cgroup of a host's processes. The node's own is next to the pods' and not above them, as on
// a real node.
func hostCgroup(root string, layout CgroupLayout, lab string, h *hostPlan) string {
	switch h.role {
	case RoleNode:
		return filepath.Join(root, h.name, "system.slice")
	case RolePod:
		return filepath.Join(root, h.node, podCgroup(layout, podUID(lab, h.name), containerID(lab, h.name)))
	default:
		return filepath.Join(root, h.name)
	}
}

func podCgroup(layout CgroupLayout, uid, container string) string {
	if layout == LayoutCgroupfs {
		return filepath.Join("kubepods", "burstable", "pod"+uid, container)
	}
	// systemd reads "-" in a slice's name as a level of the hierarchy.
	return filepath.Join("kubepods.slice", "kubepods-burstable.slice",
		"kubepods-burstable-pod"+strings.ReplaceAll(uid, "-", "_")+".slice",
		"cri-containerd-"+container+".scope")
}

// podUID is a pod's UID: it follows from the names, so that it need not be stored.
func podUID(lab, pod string) string {
	b := sha256.Sum256([]byte("uid/" + lab + "/" + pod))
	b[6] = b[6]&0x0f | 0x40 // version 4 and variant, RFC 9562
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:16])
}

// PodUID is the UID of a pod, as in the name of its cgroup.
func (h *Host) PodUID() string { return podUID(h.lab.Name, h.Name) }

func containerID(lab, pod string) string {
	return fmt.Sprintf("%x", sha256.Sum256([]byte("container/"+lab+"/"+pod)))
}

// killTimeout bounds the wait for killed processes; one in an uninterruptible system call ends after the call.
const killTimeout = time.Minute

// removeCgroups kills every process below root and removes root, if it exists.
func removeCgroups(root string) error {
	if _, err := os.Stat(root); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for deadline := time.Now().Add(killTimeout); ; time.Sleep(2 * time.Millisecond) {
		if err := killCgroup(root); err != nil {
			return err
		}
		err := removeCgroupTree(root)
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("cgroup %s cannot be removed %v after its processes were killed: %w", root, killTimeout, err)
		}
	}
}

// killCgroup sends SIGKILL to every process at and below dir.
func killCgroup(dir string) error {
	err := os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// Before Linux 5.14.
	pids, err := cgroupPIDs(dir)
	for _, pid := range pids {
		unix.Kill(pid, unix.SIGKILL) // fails if it has just ended
	}
	return err
}

// cgroupPIDs lists the processes at and below dir.
func cgroupPIDs(dir string) ([]int, error) {
	var pids []int
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || err == nil && !d.IsDir() {
			return nil
		}
		if err != nil {
			return err
		}
		data, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, field := range strings.Fields(string(data)) {
			pid, err := strconv.Atoi(field)
			if err != nil {
				return fmt.Errorf("%s/cgroup.procs: %w", path, err)
			}
			pids = append(pids, pid)
		}
		return nil
	})
	return pids, err
}

// removeCgroupTree removes dir and the cgroups below it, deepest first. The files in them belong to the kernel.
func removeCgroupTree(dir string) error {
	var dirs []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, d := range slices.Backward(dirs) {
		if err := os.Remove(d); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// insideCgroup reports whether this process is in the top-level cgroup of that name.
func insideCgroup(name string) (bool, error) {
	data, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(data)) {
		path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if ok && slices.Contains(strings.Split(path, "/"), name) {
			return true, nil
		}
	}
	return false, nil
}
