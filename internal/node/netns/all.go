// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/util/plural"
)

// All iterates over the network namespaces that any thread of the machine is in, or that are mounted somewhere,
// each once. A namespace is open during its iteration and closed afterwards. Namespaces that vanish meanwhile
// are skipped; new ones may be missed.
//
// It does not find namespaces that only an open file or a socket keeps alive. Outside the machine's initial PID
// namespace (HostPID), it does not find those of processes outside its own PID namespace either. An error (with
// a nil Namespace) does not end the iteration. *UnreadableError comes last.
func All() iter.Seq2[*Namespace, error] {
	return func(yield func(*Namespace, error) bool) {
		w := &walk{seen: map[string]bool{}, yield: yield}
		if w.mounts("/proc/self/mountinfo", "") && w.otherMounts() {
			w.tasks()
		}
	}
}

// UnreadableError counts processes whose namespace cannot be read. Processes of other users, or with more
// capabilities, need CAP_SYS_PTRACE; even then a security module may deny access.
type UnreadableError struct{ Processes int }

func (e *UnreadableError) Error() string {
	return fmt.Sprintf("the network namespaces of %s cannot be read (needs CAP_SYS_PTRACE)", plural.Of(e.Processes, "process"))
}

// initialPIDNamespace is the inode of the initial PID namespace (PROC_PID_INIT_INO of
// linux/proc_ns.h).
const initialPIDNamespace = 0xEFFFFFFC

// HostPID reports whether this process sees all tasks of the machine.
func HostPID() bool {
	var st unix.Stat_t
	return unix.Stat("/proc/self/ns/pid", &st) == nil && st.Ino == initialPIDNamespace
}

// walk is one iteration of All. Its methods return false if the loop body stopped it.
type walk struct {
	seen  map[string]bool // by the nsfs name: net:[INODE]
	yield func(*Namespace, error) bool
}

// visit opens the namespace at a path, unless it was already visited.
func (w *walk) visit(name, path string) bool {
	if w.seen[name] {
		return true
	}
	n, err := Open(path)
	if errors.Is(err, ErrVanished) {
		return true
	}
	if err != nil {
		return w.yield(nil, err)
	}
	defer n.Close()
	name = nsfsName(n.Inode) // the path may refer to another namespace by now
	if w.seen[name] {
		return true
	}
	w.seen[name] = true
	return w.yield(n, nil)
}

func nsfsName(inode uint64) string { return "net:[" + strconv.FormatUint(inode, 10) + "]" }

// mounts visits the nsfs mounts of a mountinfo file (proc_pid_mountinfo(5)), below a root directory.
func (w *walk) mounts(file, root string) bool {
	f, err := os.Open(file)
	if err != nil {
		return w.yield(nil, fmt.Errorf("list mounted network namespaces: %w", err))
	}
	defer f.Close()
	lines := bufio.NewReader(f)
	for {
		line, err := lines.ReadString('\n')
		if fields := strings.Fields(line); len(fields) > 4 && strings.HasPrefix(fields[3], "net:[") {
			if !w.visit(fields[3], root+Unescape(fields[4])) {
				return false
			}
		}
		if errors.Is(err, io.EOF) {
			return true
		}
		if err != nil {
			return w.yield(nil, fmt.Errorf("list mounted network namespaces: %w", err))
		}
	}
}

// otherMounts visits the mounts of process 1 if this process has its own mount namespace, like an agent in a
// container.
func (w *walk) otherMounts() bool {
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return w.yield(nil, err)
	}
	first, err := os.Readlink("/proc/1/ns/mnt")
	if errors.Is(err, fs.ErrPermission) {
		return true // tasks finds it unreadable, too
	}
	if err != nil {
		return w.yield(nil, err)
	}
	return own == first || w.mounts("/proc/1/mountinfo", "/proc/1/root")
}

// Unescape reverses the kernel's octal escapes (\ooo) of blanks in a path of /proc/PID/mountinfo.
func Unescape(path string) string {
	var out strings.Builder
	for i := 0; i < len(path); i++ {
		if path[i] == '\\' && i+3 < len(path) {
			if c, err := strconv.ParseUint(path[i+1:i+4], 8, 8); err == nil {
				out.WriteByte(byte(c))
				i += 3
				continue
			}
		}
		out.WriteByte(path[i])
	}
	return out.String()
}

// tasks visits the namespaces of all threads.
func (w *walk) tasks() bool {
	proc, err := os.Open("/proc")
	if err != nil {
		return w.yield(nil, err)
	}
	defer proc.Close()
	processes, err := proc.Readdirnames(-1)
	if err != nil {
		return w.yield(nil, err)
	}
	unreadable := 0
	for _, pid := range processes {
		if pid[0] < '0' || pid[0] > '9' {
			continue
		}
		more, err := w.process(int(proc.Fd()), pid)
		if errors.Is(err, fs.ErrPermission) {
			unreadable++
		} else if err != nil && !vanished(err) && !w.yield(nil, fmt.Errorf("/proc/%s: %w", pid, err)) {
			return false
		}
		if !more {
			return false
		}
	}
	if unreadable > 0 {
		return w.yield(nil, &UnreadableError{unreadable})
	}
	return true
}

// process visits the namespaces of a process's threads. Most processes have one thread, which takes two system
// calls.
func (w *walk) process(proc int, pid string) (more bool, err error) {
	more, err = w.task(proc, pid, "/proc/")
	if !more || err != nil && !vanished(err) { // the first thread may end before the others
		return more, err
	}
	var st unix.Stat_t
	if err := unix.Fstatat(proc, pid+"/task", &st, 0); err != nil || st.Nlink == 2+1 {
		return true, err
	}
	path := "/proc/" + pid + "/task/"
	dir, err := os.Open(path)
	if err != nil {
		return true, err
	}
	defer dir.Close()
	ids, err := dir.Readdirnames(-1)
	if err != nil {
		return true, err
	}
	for _, id := range ids {
		if id == pid {
			continue
		}
		if more, err = w.task(int(dir.Fd()), id, path); !more || err != nil && !vanished(err) {
			return more, err
		}
	}
	return true, nil
}

// task visits the namespace of one task: a directory of /proc or /proc/PID/task.
func (w *walk) task(dir int, id, path string) (more bool, err error) {
	var name [32]byte
	n, err := unix.Readlinkat(dir, id+"/ns/net", name[:])
	if err != nil || w.seen[string(name[:n])] {
		return true, err
	}
	return w.visit(string(name[:n]), path+id+"/ns/net"), nil
}
