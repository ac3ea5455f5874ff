// SPDX-License-Identifier: Apache-2.0

package hoststack

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// Bounds of one look.
const (
	maxProcesses = 16384
	maxSessions  = 16384
	// maxPages of a process are tried: a program has one.
	maxPages = 4
)

// State is what a program does with the library.
type State string

// The states.
const (
	On        State = "on"             // it has had sessions
	Off       State = "off"            // the switch keeps them on the kernel
	Idle      State = "no connection"  // it has the library, and has had no session
	Unread    State = "not readable"   // its page was refused or could not be opened
	NotLoaded State = "not preloaded"  // its environment names the library, and it is not loaded
	Hidden    State = "not examinable" // its mappings could not be read
)

// A Program is a process with the library, with its children that share its page, or one that should have it.
type Program struct {
	// PIDs are its processes, the lowest first.
	PIDs []int `json:"pids"`
	// Name is what the first process calls itself.
	Name string `json:"name"`
	// Pod is a pod or cgroup; empty if it was not looked for by one.
	Pod   string `json:"pod,omitempty"`
	State State  `json:"state"`
	// Why is the reason of a state, if it is known.
	Why string `json:"why,omitempty"`
	// IOUring: a process has the library, and an io_uring(7), whose operations miss the rings.
	IOUring  bool      `json:"ioUring,omitempty"`
	Counters *Counters `json:"counters,omitempty"`
	Sessions []Session `json:"sessions,omitempty"`

	page *page
}

// A Report is what a look has found.
type Report struct {
	Programs []Program `json:"programs"`
	// Truncated says what the report leaves out; empty if nothing.
	Truncated string `json:"truncated,omitempty"`
}

// Sessions returns the number of connections on rings.
func (r *Report) Sessions() (n int) {
	for i := range r.Programs {
		n += len(r.Programs[i].Sessions)
	}
	return n
}

// A Process is where to look.
type Process struct {
	PID int
	Pod string
}

// Options say what a look does beside reading.
type Options struct {
	// Causes: name programs that should have the library, and say why.
	Causes bool
	// Switch is called for each page, and may change it.
	Switch func(isOff bool, set func(off bool) error) error
}

// All returns all processes of this host's part of /proc.
func All() (all []Process, err error) {
	entries, err := os.ReadDir("/proc")
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			all = append(all, Process{PID: pid})
		}
	}
	return all, err
}

// kernelMemory returns the device of memory that memfd_create(2) makes.
func kernelMemory() (uint64, error) {
	fd, err := unix.MemfdCreate("beeline-device", unix.MFD_CLOEXEC)
	if err != nil {
		return 0, os.NewSyscallError("memfd_create", err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, os.NewSyscallError("fstat", err)
	}
	return st.Dev, nil
}

// Look returns the programs among processes that have the library, or should.
func Look(processes []Process, o Options) (*Report, error) {
	device, err := kernelMemory()
	if err != nil {
		return nil, err
	}
	l := look{device: device, options: o, byPage: map[identity]int{}, report: &Report{Programs: []Program{}}}
	defer l.close()
	if len(processes) > maxProcesses {
		l.report.Truncated = fmt.Sprintf("%d of %d processes were not looked at", len(processes)-maxProcesses, len(processes))
		processes = processes[:maxProcesses]
	}
	for _, p := range processes {
		l.process(p)
	}
	for i := range l.report.Programs {
		l.read(&l.report.Programs[i])
	}
	return l.report, nil
}

// look is a look that is under way.
type look struct {
	device  uint64
	options Options
	report  *Report
	byPage  map[identity]int
	listed  int // sessions
}

func (l *look) close() {
	for i := range l.report.Programs {
		if p := l.report.Programs[i].page; p != nil {
			p.file.Close()
		}
	}
}

// process enters a process that has the library, or should.
func (l *look) process(p Process) {
	program := Program{PIDs: []int{p.PID}, Name: nameOf(p.PID), Pod: p.Pod}
	f, err := within(p.PID, func() found { return probe(p.PID, l.device) }, found.close)
	err = cmp.Or(err, f.err)
	switch {
	case errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH):
		return // it has ended
	case err != nil:
		program.State, program.Why = Hidden, err.Error()
	case f.page != nil || f.refused != nil:
		l.withPage(program, f)
		return
	case f.library:
		program.State, program.IOUring = Idle, f.ioUring
		if l.options.Causes {
			_, program.Why = examine(p.PID, true)
		}
	case l.options.Causes:
		var wanted bool
		if wanted, program.Why = examine(p.PID, false); !wanted {
			return
		}
		program.State = NotLoaded
	default:
		return
	}
	l.report.Programs = append(l.report.Programs, program)
}

// found is what a process shows of the library.
type found struct {
	library, ioUring bool
	page             *page // nil: none, or refused
	refused          error // why what is named as a page is none
	err              error
}

func (f found) close() {
	if f.page != nil {
		f.page.file.Close()
	}
}

func probe(pid int, device uint64) (f found) {
	maps, err := readMappings(pid)
	if err != nil {
		return found{err: err}
	}
	f.library = maps.library
	for _, m := range maps.pages[:min(len(maps.pages), maxPages)] {
		if f.page, f.refused = openPage(pid, m, device); f.refused == nil {
			break
		}
	}
	if f.library || len(maps.pages) > 0 {
		f.ioUring = maps.ioUring || hasIOUring(pid)
	}
	return f
}

// withPage enters a process with a page, or adds it to the program that has it.
func (l *look) withPage(program Program, f found) {
	program.IOUring = f.ioUring
	if f.page == nil {
		program.State, program.Why = Unread, f.refused.Error()
		l.report.Programs = append(l.report.Programs, program)
		return
	}
	if i, known := l.byPage[f.page.identity]; known {
		f.close()
		same := &l.report.Programs[i]
		same.PIDs, same.IOUring = append(same.PIDs, program.PIDs[0]), same.IOUring || program.IOUring
		return
	}
	program.page = f.page
	l.byPage[f.page.identity] = len(l.report.Programs)
	l.report.Programs = append(l.report.Programs, program)
}

// read reads the page of a program, and switches it.
func (l *look) read(program *Program) {
	if program.page == nil {
		return
	}
	slices.Sort(program.PIDs)
	program.Name = cmp.Or(nameOf(program.PIDs[0]), program.Name)
	if err := l.readPage(program); err != nil {
		program.State, program.Why = Unread, err.Error()
	}
}

func (l *look) readPage(program *Program) error {
	off, err := program.page.isOff()
	if err == nil && l.options.Switch != nil {
		err = l.options.Switch(off, program.page.setSwitch)
	}
	if err == nil {
		off, err = program.page.isOff()
	}
	if err != nil {
		return err
	}
	program.State = On
	if off {
		program.State = Off
	}
	if program.Counters, err = program.page.counters(); err != nil {
		return err
	}
	owners := map[uint32]int{}
	for _, pid := range program.PIDs {
		if number, err := ownNumber(pid); err == nil {
			owners[number] = pid
		}
	}
	sessions, err := program.page.sessions(owners)
	if room := maxSessions - l.listed; len(sessions) > room {
		l.report.Truncated = fmt.Sprintf("more than %d connections", maxSessions)
		sessions = sessions[:room]
	}
	l.listed += len(sessions)
	program.Sessions = sessions
	return err
}
