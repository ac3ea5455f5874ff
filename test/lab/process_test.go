// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// placeOf runs a command on the host that prints its network namespace and its cgroup2 cgroup.
func placeOf(t *testing.T, h *Host) (netns, cgroup string) {
	t.Helper()
	out, err := h.Command(t.Context(), "sh", "-c", "readlink /proc/self/ns/net; cat /proc/self/cgroup").Output()
	if err != nil {
		t.Error(err)
		return "", ""
	}
	netns, rest, _ := strings.Cut(string(out), "\n")
	for line := range strings.Lines(rest) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			cgroup = path
		}
	}
	return netns, cgroup
}

func TestCommandRunsOnItsHost(t *testing.T) {
	l := New(t)
	mount := strings.TrimSuffix(l.CgroupRoot, "/beeline-lab-"+l.Name)
	seen := map[string]string{}
	for _, h := range l.Hosts() {
		ns, cgroup := placeOf(t, h)
		if mount+cgroup != h.Cgroup {
			t.Errorf("%s: command in cgroup %s, want %s", h.Name, cgroup, h.Cgroup)
		}
		if other, twice := seen[ns]; twice {
			t.Errorf("%s and %s run in one namespace", h.Name, other)
		}
		seen[ns] = h.Name
	}
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	if host, ok := seen[own]; ok {
		t.Errorf("%s runs in the caller's namespace", host)
	}
}

// Concurrent starts: no process ends up on another host, and the caller's own processes stay out of the lab.
func TestCommandsOfManyHostsAtOnce(t *testing.T) {
	l := New(t)
	want := map[*Host]string{}
	for _, h := range l.Hosts() {
		want[h], _ = placeOf(t, h)
	}
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	var workers sync.WaitGroup
	for _, h := range l.Hosts() {
		workers.Go(func() {
			for range 10 {
				if got, _ := placeOf(t, h); got != want[h] {
					t.Errorf("%s: command in namespace %s, want %s", h.Name, got, want[h])
				}
			}
		})
	}
	workers.Go(func() {
		for range 40 {
			out, err := exec.Command("readlink", "/proc/self/ns/net").Output()
			if err != nil || strings.TrimSpace(string(out)) != own {
				t.Errorf("the caller's own command in namespace %s (%v), want %s", out, err, own)
			}
		}
	})
	workers.Wait()
}

func TestCommandExitCode(t *testing.T) {
	l := New(t)
	err := l.Host("client").Command(t.Context(), "sh", "-c", "echo why >&2; exit 7").Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("exit 7: %v", err)
	}
	_, err = l.Host("client").Command(t.Context(), "sh", "-c", "echo why >&2; exit 7").Output()
	if !errors.As(err, &exit) || string(exit.Stderr) != "why\n" {
		t.Errorf("Output's error has standard error %q, want why", exit.Stderr)
	}
	if err := l.Host("client").Command(t.Context(), "no-such-command").Run(); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("unknown command: %v, want exec.ErrNotFound", err)
	}
	if err := l.Host("client").Command(t.Context()).Run(); err == nil {
		t.Error("empty command: no error")
	}
}

func TestCommandEndsWithItsContext(t *testing.T) {
	l := New(t)
	ctx, cancel := context.WithCancel(t.Context())
	cmd := l.Host("a1").Command(ctx, "sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	cancel()
	err := cmd.Wait()
	if exit := new(exec.ExitError); !errors.As(err, &exit) || exit.ExitCode() != -1 {
		t.Errorf("%v, want killed", err)
	}
}

// A host's processes see the sysctls of its network, as agents need.
func TestCommandSeesItsSysctls(t *testing.T) {
	l := New(t)
	for _, h := range l.Hosts() {
		out, err := h.Command(t.Context(), "cat", "/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding").Output()
		want := "0\n0\n"
		if h.Role == RoleNode || h.Role == RoleFabric {
			want = "1\n1\n"
		}
		if err != nil || string(out) != want {
			t.Errorf("%s forwards %q (%v), want %q", h.Name, out, err, want)
		}
	}
}

// Down ends every process of the lab, even those that ignore signals.
func TestDownKillsProcesses(t *testing.T) {
	l := New(t)
	cmd := l.Host("b1").Command(t.Context(), "sh", "-c", "trap '' TERM HUP INT; echo ready; while :; do sleep 600; done")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 9)); err != nil {
		t.Fatal(err)
	}
	if err := l.Down(); err != nil {
		t.Fatal(err)
	}
	survivor := time.AfterFunc(patience, func() { cmd.Process.Signal(unix.SIGABRT) })
	defer survivor.Stop()
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.Sys().(unixWaitStatus).Signal() != unix.SIGKILL {
		t.Errorf("the process ended with %v, want SIGKILL", err)
	}
}

type unixWaitStatus interface{ Signal() unix.Signal }
