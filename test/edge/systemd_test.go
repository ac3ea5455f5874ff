// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"beeline.io/beeline/test/node"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// manager is a systemd of its own on a node.
type manager struct {
	*world
	log  *node.Log
	init string // PID of its first process
}

// The unit of examples/balancer does what its first lines say: installed accordingly, it serves the VIPs; after
// a kill it is restarted; stopped, it continues to serve; with an invalid file it fails to start, says why, and
// the previous state stays in effect.
func TestSystemdUnit(t *testing.T) {
	if err := privateMounts(); errors.Is(err, unix.EINVAL) {
		t.Skip("the root directory is no mount point (chroot), so mounts cannot be private")
	}
	w := newWorld(t)
	web := netip.MustParseAddrPort("203.0.113.10:80")
	w.must(addRoute(w.Host("fabric"), "node-a", &netlink.Route{Dst: network("203.0.113.0/24"), Gw: w.Host("node-a").Addr4.AsSlice()}))
	m := w.startSystemd()
	unit := absolute(t, "../../examples/balancer/beeline.service")
	install := strings.Split(m.do("sed", "-n", "s/^#   //p", unit), "\n")
	if len(install) < 4 {
		t.Fatalf("the unit says how to install it in %d lines", len(install))
	}
	// There is no journal here; the cgroups of this machine are not visible; and it may be busy.
	m.do("sh", "-c", `mkdir /etc/systemd/system/beeline.service.d && cd /etc/systemd/system/beeline.service.d &&
		printf '[Service]\nTimeoutStartSec=30\nStandardOutput=append:/run/beeline.log\nStandardError=inherit\nExecStart=\n' >here.conf &&
		sed -n 's|^ExecStart=.*|& --cgroup-root /sys/fs/cgroup|p' `+unit+` >>here.conf`)
	for _, line := range install {
		line = strings.ReplaceAll(line, "bin/beeline ", program+" ")
		m.do("sh", "-c", strings.ReplaceAll(line, "examples/", absolute(t, "../../examples")+"/"))
	}
	m.wantState("active")
	m.wantWell()
	w.wantWeb(web, "b1", "b2", "b3")

	first := m.do("systemctl", "show", "--property=MainPID", "beeline")
	m.do("systemctl", "kill", "--signal=KILL", "beeline")
	w.wantWeb(web, "b1", "b2", "b3")
	w.eventually("another agent is ready", func() bool {
		out, _ := m.try("systemctl", "is-active", "beeline")
		return out == "active" && m.do("systemctl", "show", "--property=MainPID", "beeline") != first
	})
	m.wantWell()
	w.wantWeb(web, "b1", "b2", "b3")

	m.do("systemctl", "stop", "beeline")
	m.wantState("inactive")
	w.wantWeb(web, "b1", "b2", "b3")
	m.do("sh", "-c", "echo 'kind: Nonsense' >/etc/beeline/vips.yaml")
	if out, err := m.try("systemctl", "start", "beeline"); err == nil {
		t.Errorf("it starts with an invalid file: %s", out)
	}
	if said := m.do("cat", "/run/beeline.log"); !strings.Contains(said, "vips.yaml:1") {
		t.Errorf("it does not say what is wrong with the file:\n%s", said)
	}
	w.wantWeb(web, "b1", "b2", "b3")
	m.do("cp", absolute(t, "../../examples/balancer/vips.yaml"), "/etc/beeline/vips.yaml")
	w.eventually("it runs again", func() bool { out, _ := m.try("systemctl", "is-active", "beeline"); return out == "active" })
	m.wantWell()
	m.do("systemctl", "stop", "beeline")
	m.do("/usr/local/bin/beeline", "cleanup")
}

// privateMounts checks that a mount namespace can be private.
func privateMounts() error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlock: the thread ends with its namespace
		err := unix.Unshare(unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		result <- err
	}()
	return <-result
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// startSystemd starts systemd in a network, process and mount namespace on node-a.
func (w *world) startSystemd() *manager {
	w.t.Helper()
	m := &manager{world: w, log: &node.Log{}}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := w.Host("node-a").Command(ctx, "unshare", "--fork", "--kill-child", "--pid", "--mount", "--cgroup", "--uts", "--ipc", absolute(w.t, "testdata/systemd"))
	cmd.Stdout, cmd.Stderr = m.log, m.log
	w.must(cmd.Start())
	w.t.Cleanup(func() {
		if w.t.Failed() {
			said, _ := m.try("cat", "/run/beeline.log")
			w.t.Logf("systemd printed:\n%s\nthe agent printed:\n%s", m.log, said)
		}
		cancel()
		var exit interface{ ExitCode() int }
		if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
			w.t.Error(err)
		}
	})
	w.eventually("systemd runs", func() bool {
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", cmd.Process.Pid))
		m.init = strings.TrimSpace(string(children))
		if err != nil || m.init == "" {
			return false
		}
		out, _ := m.try("systemctl", "is-system-running")
		return out == "running"
	})
	return m
}

// try runs a command in systemd's namespaces.
func (m *manager) try(argv ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := m.Host("node-a").Command(ctx, append([]string{"nsenter", "--target", m.init, "--pid", "--mount", "--cgroup"}, argv...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func (m *manager) do(argv ...string) string {
	m.t.Helper()
	out, err := m.try(argv...)
	if err != nil {
		m.t.Fatalf("%s: %v: %s", argv, err, out)
	}
	return out
}

// wantWell waits until status reports nothing wrong, backends included: a probe may be late on a busy machine.
func (m *manager) wantWell() {
	m.t.Helper()
	m.eventually("all is well", func() bool { _, err := m.try("/usr/local/bin/beeline", "status"); return err == nil })
}

func (m *manager) wantState(state string) {
	m.t.Helper()
	if got, _ := m.try("systemctl", "is-active", "beeline"); got != state {
		m.t.Fatalf("the unit is %s, want %s", got, state)
	}
}
