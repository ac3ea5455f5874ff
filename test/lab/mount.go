// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// mountPoint is one line of mountinfo, see proc_pid_mountinfo(5).
type mountPoint struct {
	path   string
	fstype string
	shared bool // in a peer group: mounts in it are propagated
}

// mounts lists the mounts that this thread sees, oldest first. /proc/self shows the first thread, which may be
// in a mount namespace of its own.
func mounts() ([]mountPoint, error) {
	f, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var list []mountPoint
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		// id parent major:minor root path options [tags...] - fstype source options
		before, after, ok := strings.Cut(lines.Text(), " - ")
		fields, types := strings.Fields(before), strings.Fields(after)
		if !ok || len(fields) < 6 || len(types) < 1 {
			return nil, fmt.Errorf("/proc/thread-self/mountinfo: cannot read line %q", lines.Text())
		}
		shared := slices.ContainsFunc(fields[6:], func(tag string) bool { return strings.HasPrefix(tag, "shared:") })
		list = append(list, mountPoint{path: unescapeMount(fields[4]), fstype: types[0], shared: shared})
	}
	return list, lines.Err()
}

// unescapeMount undoes the octal escapes of mountinfo.
func unescapeMount(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// mountBPF gives dir a BPF file system of its own: its pins are not visible at /sys/fs/bpf, and end with the
// mount.
func mountBPF(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := unix.Mount("bpf", dir, "bpf", 0, "mode=0700"); err != nil {
		return fmt.Errorf("mounting a BPF file system at %s (needs CAP_SYS_ADMIN and CONFIG_BPF_SYSCALL): %w", dir, err)
	}
	return nil
}

// unmountBelow unmounts everything below dir, newest first. A mount that is in use stays until its users close
// it.
func unmountBelow(dir string) error {
	list, err := mounts()
	if err != nil {
		return err
	}
	var errs []error
	for _, m := range slices.Backward(list) {
		if !strings.HasPrefix(m.path, dir+"/") {
			continue
		}
		err := unix.Unmount(m.path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("unmounting %s: %w", m.path, err))
		}
	}
	return errors.Join(errs...)
}

// hasFileSystem reports whether path is on a file system with that magic number.
func hasFileSystem(path string, magic int64) bool {
	var fs unix.Statfs_t
	return unix.Statfs(path, &fs) == nil && int64(fs.Type) == magic
}
