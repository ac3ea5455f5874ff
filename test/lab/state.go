// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// stateRoot holds one directory per lab. Everything that a lab creates elsewhere (namespaces, cgroups) is named
// after it, so the name alone finds it.
const stateRoot = "/run/beeline-lab"

const stateFile = "state.json"

func stateDir(lab string) string { return filepath.Join(stateRoot, lab) }

// state is a lab's state on disk. It is written before anything else is created, and again with Complete set
// when everything is.
type state struct {
	Layout   CgroupLayout `json:"cgroupLayout"`
	Shape    Shape        `json:"shape"`
	Cgroup2  string       `json:"cgroup2"` // mount point of the hierarchy
	Created  time.Time    `json:"created"`
	BootID   string       `json:"bootID"` // a reboot removes everything except files
	Complete bool         `json:"complete"`
	Owner    *process     `json:"owner,omitempty"` // set: the lab ends with this process
}

// process identifies one process for good: the pid alone may be reused.
type process struct {
	PID   int    `json:"pid"`
	Start string `json:"start"` // clock ticks after boot, proc_pid_stat(5) field 22
}

func processOf(pid int) (process, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return process{}, err
	}
	// The second field is the name in parentheses and may itself contain both blanks and parentheses.
	_, rest, ok := strings.Cut(string(data[strings.LastIndexByte(string(data), ')')+1:]), " ")
	fields := strings.Fields(rest)
	const startField = 22 - 3 // the rest starts at field 3
	if !ok || len(fields) <= startField {
		return process{}, fmt.Errorf("/proc/%d/stat: cannot read %q", pid, data)
	}
	if fields[0] == "Z" || fields[0] == "X" {
		return process{}, fmt.Errorf("process %d has ended: %w", pid, fs.ErrNotExist)
	}
	return process{PID: pid, Start: fields[startField]}, nil
}

// alive reports whether p still runs, or cannot be read: nothing is taken from a process that may run.
func (p process) alive() bool {
	now, err := processOf(p.PID)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return false
	}
	return err != nil || now == p
}

func bootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(data)), err
}

func readState(lab string) (state, error) {
	var s state
	data, err := os.ReadFile(filepath.Join(stateDir(lab), stateFile))
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("lab %s: %s is damaged: %w", lab, stateFile, err)
	}
	if err := s.Shape.complete(); err != nil {
		return s, fmt.Errorf("lab %s: %s: %w", lab, stateFile, err)
	}
	return s, nil
}

// write replaces the state in one step.
func (s state) write(lab string) error {
	return writeJSON(filepath.Join(stateDir(lab), stateFile), s)
}

// writeJSON writes a temporary file and renames it, so that no reader and no crash ever finds half of it.
func writeJSON(path string, value any) error {
	data, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", append(data, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// errBusy means that another process holds a lab's lock.
var errBusy = errors.New("another process is making or removing the lab")

// lockLab locks a lab's directory; the kernel releases the lock when the file is closed or the process ends.
// With create a missing directory is created, else it is fs.ErrNotExist. Without wait a held lock is errBusy.
func lockLab(lab string, create, wait bool) (*os.File, error) {
	dir, how := stateDir(lab), unix.LOCK_EX
	if !wait {
		how |= unix.LOCK_NB
	}
	for {
		if create {
			// Both of these errors mean that the last lab has just removed the root.
			if err := os.MkdirAll(dir, 0o755); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrExist) {
				return nil, err
			}
		}
		f, err := os.Open(dir)
		if errors.Is(err, fs.ErrNotExist) && create {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		if err := flock(f, how); err != nil {
			f.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil, fmt.Errorf("lab %s: %w", lab, errBusy)
			}
			return nil, fmt.Errorf("locking %s: %w", dir, err)
		}
		// The previous holder of the lock may have removed the directory.
		held, err1 := f.Stat()
		now, err2 := os.Stat(dir)
		if err1 == nil && err2 == nil && os.SameFile(held, now) {
			return f, nil
		}
		f.Close()
	}
}

func flock(f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// labNames lists the labs with a directory, complete or not.
func labNames() ([]string, error) {
	entries, err := os.ReadDir(stateRoot)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}
