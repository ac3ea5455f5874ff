// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/test/node"
)

// restart stops the agent as a service manager does, and starts it.
func (w *world) restart() error {
	if err := w.agent.Stop(); err != nil {
		return err
	}
	return w.agent.Start()
}

// kills kills the agent at random moments, most of them while it starts.
func (w *world) kills() error {
	times := 4
	if soaking() {
		times = 20
	}
	for range times {
		if err := w.agent.Kill(); err != nil {
			return err
		}
		if err := w.agent.StartOnly(); err != nil {
			return err
		}
		time.Sleep(time.Duration(w.random.Int64N(int64(1500 * time.Millisecond))))
		w.killed.Add(1)
	}
	return w.agent.WaitReady()
}

// stop stops the agent's process for a while.
func (w *world) stop() error {
	if err := syscall.Kill(w.agent.PID(), syscall.SIGSTOP); err != nil {
		return err
	}
	time.Sleep(length(8*time.Second, time.Minute))
	return syscall.Kill(w.agent.PID(), syscall.SIGCONT)
}

// otherClocks has an agent in a time namespace take over: its monotonic clock is a day ahead of the kernel's, and by
// that clock every entry has expired.
func (w *world) otherClocks() error {
	const day = "86400"
	w.agent.Wrap = []string{"unshare", "--time", "--monotonic", day, "--boottime", day}
	defer func() { w.agent.Wrap = nil }()
	if err := w.restart(); err != nil {
		return err
	}
	swept := time.Time{}
	for range 2 {
		if err := w.agent.WaitFor("a GC pass", func(s *api.Status) bool { return s.Edge.Conntrack.LastGC.After(swept) }); err != nil {
			return err
		}
		s, err := w.agent.Status()
		if err != nil {
			return err
		}
		swept = s.Edge.Conntrack.LastGC
	}
	w.agent.Wrap = nil
	return w.restart()
}

// sourceAway kills the agent while its source is away: the next one starts without it.
func (w *world) sourceAway() error {
	if err := w.objects.leave(); err != nil {
		return err
	}
	if err := w.agent.Kill(); err != nil {
		return err
	}
	if err := w.agent.StartOnly(); err != nil {
		return err
	}
	err := w.agent.WaitFor("attached, and without a source", func(s *api.Status) bool { return !s.Source.Synced && len(s.Attachments) == s.ExpectedAttachments })
	if err != nil {
		return err
	}
	time.Sleep(length(3*time.Second, 20*time.Second))
	if s, err := w.agent.Status(); err != nil || s.Counts.Services != len(serviceNames)+w.extraServices() {
		return fmt.Errorf("%d Services are in the tables (%v)", s.Counts.Services, err)
	}
	if err := w.objects.back(); err != nil {
		return err
	}
	return w.agent.WaitReady()
}

// extraServices are those that a source has besides.
func (w *world) extraServices() int {
	if *apiFlag {
		return 1 // default/kubernetes
	}
	return 0
}

// upgrades replaces the agent twice in a row, each time by one with another layout of the tables, thus other programs,
// and tables of other sizes; after the first event, with other sizes alone. Each is killed once in the middle.
func (w *world) upgrades() error {
	sizes := map[int]int{fewFlows: 2 * fewFlows, 2 * fewFlows: fewFlows}
	for _, version := range w.versions {
		if err := w.agent.Kill(); err != nil {
			return err
		}
		w.agent.MaxFlows = sizes[w.agent.MaxFlows]
		if w.happened["upgrades"] == 0 {
			w.agent.Program = version
		}
		if err := w.agent.StartOnly(); err != nil {
			return err
		}
		time.Sleep(time.Duration(500+w.random.IntN(1000)) * time.Millisecond)
		if err := w.agent.Kill(); err != nil {
			return err
		}
		if err := w.agent.Start(); err != nil {
			return err
		}
	}
	return nil
}

// newVersions builds two agents with other versions of the layout of the tables, which no release has.
func (w *world) newVersions() (programs [2]string) {
	w.t.Helper()
	programs, err := node.BuildVersions(w.t.TempDir())
	w.must(err)
	return programs
}

// outOfMemory has the kernel kill the agent because its cgroup has no memory left, and starts another one.
func (w *world) outOfMemory() error {
	group, err := newMemoryCgroup(w.Name)
	if err != nil {
		return err
	}
	w.t.Cleanup(func() { // after a failure
		if err := errors.Join(w.agent.Kill(), group.remove()); err != nil {
			w.t.Error(err)
		}
	})
	if err := w.agent.Stop(); err != nil {
		return err
	}
	w.agent.Wrap = []string{"sh", "-c", `echo $$ >` + group.procs() + ` && echo 1000 >/proc/self/oom_score_adj && exec "$@"`, "sh"}
	err = w.agent.Start()
	w.agent.Wrap = nil
	if err != nil {
		return err
	}
	limit, err := group.limit()
	if err != nil {
		return err
	}
	// It takes more than there is, even if the kernel reclaims pages of the program's file.
	hog := exec.Command("sh", "-c", fmt.Sprintf("echo $$ >%s && head -c %d /dev/zero | tail >/dev/null", group.procs(), limit))
	if err := hog.Start(); err != nil {
		return err
	}
	err = w.agent.WaitAtMost(patience)
	if errors.Is(err, context.DeadlineExceeded) {
		return errors.Join(errors.New("the agent is not killed for lack of memory"), hog.Process.Kill(), hog.Wait())
	}
	if err == nil || !strings.HasPrefix(err.Error(), "signal: killed") || group.kills() == 0 {
		return fmt.Errorf("the agent ended otherwise than for lack of memory: %v", err)
	}
	hog.Wait() // it may have been killed next
	return errors.Join(group.remove(), w.agent.Start())
}

// memoryCgroup is a cgroup of the memory controller, of version 1 or 2.
type memoryCgroup struct {
	path string
	v1   bool
}

// newMemoryCgroup makes one of the lab's own.
func newMemoryCgroup(lab string) (*memoryCgroup, error) {
	name := "beeline-lab-" + lab + "-memory"
	for _, c := range []memoryCgroup{{"/sys/fs/cgroup/memory", true}, {"/sys/fs/cgroup", false}} {
		file := map[bool]string{true: "memory.limit_in_bytes", false: "memory.max"}[c.v1]
		c.path = filepath.Join(c.path, name)
		if err := os.Mkdir(c.path, 0o755); err != nil {
			continue
		}
		if _, err := os.Stat(filepath.Join(c.path, file)); err == nil {
			return &c, nil
		}
		os.Remove(c.path)
	}
	return nil, errors.New("no memory controller of cgroups, of version 1 or 2, below /sys/fs/cgroup")
}

func (c *memoryCgroup) procs() string { return filepath.Join(c.path, "cgroup.procs") }

// remove removes it. It is busy until the kernel has finished the processes that it killed there.
func (c *memoryCgroup) remove() error {
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		err := os.Remove(c.path)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if time.Now().After(deadline) {
			return err
		}
	}
}

func (c *memoryCgroup) number(file string) (n int64) {
	text, err := os.ReadFile(filepath.Join(c.path, file))
	if err == nil {
		fmt.Sscan(string(text), &n)
	}
	return n
}

// limit leaves hardly any memory to what runs there, and returns how many bytes it may have.
func (c *memoryCgroup) limit() (bytes int64, err error) {
	used, file := "memory.current", "memory.max"
	if c.v1 {
		used, file = "memory.usage_in_bytes", "memory.limit_in_bytes"
	}
	bytes = c.number(used) + 1<<20
	return bytes, os.WriteFile(filepath.Join(c.path, file), fmt.Append(nil, bytes), 0)
}

// kills is how many processes the kernel has killed there.
func (c *memoryCgroup) kills() (n int) {
	file := map[bool]string{true: "memory.oom_control", false: "memory.events"}[c.v1]
	text, err := os.ReadFile(filepath.Join(c.path, file))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		fmt.Sscanf(line, "oom_kill %d", &n)
	}
	return n
}
