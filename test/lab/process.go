// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Cmd is an exec.Cmd whose process starts in a host's network namespace and
// cgroup. It is used like one; only its own Start, Run, Output and
// CombinedOutput enter the host, not those of the embedded value.
type Cmd struct {
	*exec.Cmd
	host *Host
}

// Command prepares a process of the host. It is in the host's namespace and cgroup from its first instruction
// on; file system and /sys are the caller's (so /sys/class/net shows the caller's devices, while /proc/sys/net
// and netlink are the host's). The process is killed when ctx ends; in a temporary lab also when this process
// ends, for whatever reason.
func (h *Host) Command(ctx context.Context, argv ...string) *Cmd {
	if len(argv) == 0 {
		return &Cmd{&exec.Cmd{Err: errors.New("lab: no command given")}, h}
	}
	return &Cmd{exec.CommandContext(ctx, argv[0], argv[1:]...), h}
}

// Start starts the process, see exec.Cmd.
func (c *Cmd) Start() error {
	cgroup, err := os.Open(c.host.Cgroup)
	if err != nil {
		return fmt.Errorf("host %s: opening its cgroup: %w", c.host.Name, err)
	}
	defer cgroup.Close()
	ns, err := os.Open(c.host.NetNS)
	if err != nil {
		return fmt.Errorf("host %s: opening its network namespace: %w", c.host.Name, err)
	}
	defer ns.Close()
	var attr syscall.SysProcAttr
	if c.SysProcAttr != nil {
		attr = *c.SysProcAttr
	}
	// clone3(CLONE_INTO_CGROUP): the process is never in another cgroup, as it would be if it were moved
	// after its start.
	attr.UseCgroupFD, attr.CgroupFD = true, int(cgroup.Fd())
	if c.host.lab.Temporary && attr.Pdeathsig == 0 {
		attr.Pdeathsig = unix.SIGKILL
	}
	c.SysProcAttr = &attr
	if err := startIn(ns, c.Cmd); err != nil {
		return fmt.Errorf("host %s: %w", c.host.Name, err)
	}
	return nil
}

// Run starts the process and waits for it, see exec.Cmd.
func (c *Cmd) Run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

// Output runs the process and returns what it wrote to standard output, see
// exec.Cmd.
func (c *Cmd) Output() ([]byte, error) {
	var out, errOut bytes.Buffer
	c.Stdout = &out
	if c.Stderr == nil {
		c.Stderr = &errOut
	}
	err := c.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		exit.Stderr = errOut.Bytes()
	}
	return out.Bytes(), err
}

// CombinedOutput runs the process and returns its output and errors together,
// see exec.Cmd.
func (c *Cmd) CombinedOutput() ([]byte, error) {
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	err := c.Run()
	return out.Bytes(), err
}

// startRequest asks the spawner to start cmd in the namespace ns.
type startRequest struct {
	ns     *os.File
	cmd    *exec.Cmd
	result chan<- error
}

// spawner is the thread that starts all processes of labs. A child inherits the namespace of the thread that
// forks it, and the kernel sends a child's Pdeathsig when that thread ends: therefore a thread that nobody else
// uses and that never ends.
var spawner = sync.OnceValue(func() chan<- startRequest {
	requests := make(chan startRequest)
	onOwnThread(func() {
		home, err := openCurrentNetNS()
		for r := range requests {
			if err != nil {
				r.result <- err
				continue
			}
			r.result <- r.start(home)
		}
	})
	return requests
})

func startIn(ns *os.File, cmd *exec.Cmd) error {
	result := make(chan error)
	spawner() <- startRequest{ns, cmd, result}
	return <-result
}

func (r startRequest) start(home *os.File) error {
	if err := unix.Setns(int(r.ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("entering network namespace %s: %w", r.ns.Name(), err)
	}
	err := r.cmd.Start()
	if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back != nil {
		// The next start sets its namespace itself; until then the lab's stays in use.
		err = errors.Join(err, fmt.Errorf("leaving network namespace %s: %w", r.ns.Name(), back))
	}
	return err
}

// Exec replaces this process with argv in the host's namespace and cgroup: standard streams, terminal, signals
// and exit status are then the command's. It returns only on error, exec.ErrNotFound if there is no such
// command.
func (h *Host) Exec(argv []string) error {
	if len(argv) == 0 {
		return errors.New("lab: no command given")
	}
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return err
	}
	procs := filepath.Join(h.Cgroup, "cgroup.procs")
	if err := os.WriteFile(procs, []byte(strconv.Itoa(os.Getpid())), 0); err != nil {
		return fmt.Errorf("host %s: entering its cgroup: %w", h.Name, err)
	}
	// execve ends all threads except the calling one, whose namespace stays.
	runtime.LockOSThread()
	ns, err := os.Open(h.NetNS)
	if err != nil {
		return fmt.Errorf("host %s: opening its network namespace: %w", h.Name, err)
	}
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("entering network namespace %s: %w", h.NetNS, err)
	}
	return &os.PathError{Op: "exec", Path: path, Err: syscall.Exec(path, argv, os.Environ())}
}
