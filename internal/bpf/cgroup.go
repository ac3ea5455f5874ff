// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf/pinfs"
)

const (
	// systemCgroup is where the distributions mount cgroups (v2, or v1 in a tmpfs).
	systemCgroup = "/sys/fs/cgroup"
	// OwnCgroup is where Beeline mounts cgroup v2 if systemCgroup is not v2: on a node with v1
	// hierarchies ("hybrid") v2 may be mounted anywhere or nowhere.
	OwnCgroup = "/run/beeline/cgroup2"
)

// initialCgroupNamespace is the inode of the initial cgroup namespace (PROC_CGROUP_INIT_INO of
// linux/proc_ns.h): in any other one the root of a mount is not the root of the hierarchy.
const initialCgroupNamespace = 0xEFFFFFFB

// CgroupRoot returns the directory to attach to: root if it is not empty, else the root of the machine's
// cgroup v2 hierarchy, which is mounted at OwnCgroup if necessary.
func CgroupRoot(root string) (string, error) {
	if root != "" {
		return root, CheckCgroupRoot(root)
	}
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/cgroup", &st); err == nil && st.Ino != initialCgroupNamespace {
		return "", fmt.Errorf("the agent runs in a cgroup namespace of its own, which hides the node's pods: "+
			"mount the node's cgroup v2 hierarchy into its container and set --cgroup-root to it; "+
			"a balancer without pods in a system container (LXC, systemd-nspawn) serves its own programs with --cgroup-root %s", systemCgroup)
	}
	for _, path := range []string{systemCgroup, OwnCgroup} {
		if v2, err := pinfs.IsFS(path, unix.CGROUP2_SUPER_MAGIC); err == nil && v2 {
			return path, nil
		}
	}
	if err := os.MkdirAll(OwnCgroup, 0o755); err != nil {
		return "", fmt.Errorf("create the mount point for cgroup v2: %w", err)
	}
	if err := unix.Mount("none", OwnCgroup, "cgroup2", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return "", fmt.Errorf("mount cgroup v2 at %s: %w", OwnCgroup, err)
	}
	return OwnCgroup, nil
}

// CheckCgroupRoot returns an error for a directory that the hooks cannot be attached to. It changes nothing.
func CheckCgroupRoot(root string) error {
	if root == "" {
		return nil
	}
	v2, err := pinfs.IsFS(root, unix.CGROUP2_SUPER_MAGIC)
	if errors.Is(err, os.ErrNotExist) {
		if v2, err := pinfs.IsFS(pinfs.ExistingParent(root), unix.CGROUP2_SUPER_MAGIC); err == nil && v2 {
			return fmt.Errorf("--cgroup-root %s: not found: make it with mkdir", root)
		}
		return fmt.Errorf("--cgroup-root %s: not found%s; below `ip netns exec`, whose /sys has no mounts, give it by another path (mount -t cgroup2 none DIRECTORY)", root, whereV2(root))
	}
	if err != nil {
		return fmt.Errorf("--cgroup-root: %w", err)
	}
	if !v2 {
		return fmt.Errorf("--cgroup-root %s: not a cgroup v2 directory%s", root, whereV2(root))
	}
	if info, err := os.Stat(root); err != nil || !info.IsDir() {
		return fmt.Errorf("--cgroup-root %s: not a directory", root)
	}
	return nil
}

// whereV2 says where cgroup v2 is mounted instead: systemd mounts it below cgroup v1 ("hybrid").
func whereV2(root string) string {
	mounts := pinfs.MountsOf("cgroup2")
	slices.SortFunc(mounts, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b)) })
	mounts = slices.DeleteFunc(append([]string{systemCgroup, systemCgroup + "/unified", OwnCgroup}, mounts...), func(path string) bool {
		v2, err := pinfs.IsFS(path, unix.CGROUP2_SUPER_MAGIC) // another mount may hide it
		return err != nil || !v2
	})
	if len(mounts) == 0 {
		return ": no cgroup v2 hierarchy is mounted here: leave --cgroup-root out, and the agent mounts one"
	}
	v1 := ""
	if strings.HasPrefix(root+"/", systemCgroup+"/") {
		v1 = "cgroup v1 is mounted there, and v2 beside it: "
	}
	return fmt.Sprintf(": %sset --cgroup-root to %s, or to a directory in it", v1, mounts[0])
}

// cgroupID returns the kernel's id of a cgroup directory: its inode number.
func cgroupID(path string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return st.Ino, nil
}

// cgroupName returns the path of a cgroup by its id, below the mounts that this process sees; the id itself
// if the directory was removed or is not visible.
func cgroupName(id uint64) string {
	if id == 0 {
		return "(removed)"
	}
	handle := unix.NewFileHandle(fileidKernfs, binary.NativeEndian.AppendUint64(nil, id))
	for _, mount := range []string{systemCgroup, OwnCgroup, systemCgroup + "/unified"} {
		if v2, err := pinfs.IsFS(mount, unix.CGROUP2_SUPER_MAGIC); err != nil || !v2 {
			continue
		}
		at, err := unix.Open(mount, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		fd, err := unix.OpenByHandleAt(at, handle, unix.O_PATH|unix.O_CLOEXEC)
		unix.Close(at)
		if err != nil {
			continue
		}
		path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
		unix.Close(fd)
		if err == nil {
			return path
		}
	}
	return fmt.Sprintf("(id %d)", id)
}

// fileidKernfs is FILEID_KERNFS of linux/exportfs.h: a file handle that consists of the node's 64-bit id.
const fileidKernfs = 0xfe
