// SPDX-License-Identifier: Apache-2.0

package hoststack

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/shortcut/mesh/hoststack"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// patience bounds all waiting. No result depends on it.
const patience = time.Minute

// python is Debian's, which is no script that starts another program.
const python = "/usr/bin/python3"

// A world is a lab with an agent that serves the pods a1 and a2 of node-a.
type world struct {
	*lab.Lab
	t       *testing.T
	agent   *node.Agent
	library string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{Lab: lab.New(t), t: t, library: libraryPath(t)}
	folder := &node.Folder{Path: t.TempDir()}
	w.must(folder.Put("cluster", node.Cluster(w.Lab)...))
	w.agent = &node.Agent{Host: w.Host("node-a"), Program: program, Manifests: folder.Path, MaxFlows: 16384, Log: &node.Log{}}
	t.Cleanup(func() {
		if err := w.agent.Kill(); err != nil {
			t.Errorf("the agent ended before it was killed: %v", err)
		}
		if t.Failed() {
			t.Logf("the agent printed:\n%s", w.agent.Log)
		}
	})
	w.startAgent("on")
	return w
}

// libraryPath is where `make hoststack` puts the library.
func libraryPath(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../../bin/libbeeline_hoststack.so")
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		t.Fatalf("%v: `make hoststack` builds it", err)
	}
	return path
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// startAgent starts the agent, again if it runs.
func (w *world) startAgent(mode string) {
	w.t.Helper()
	if w.agent.Running() {
		w.must(w.agent.Stop())
	}
	w.agent.Flags = []string{"--edge-mode=off", "--mesh-hoststack=" + mode, "--mesh-cgroups=" + w.Host("a1").Cgroup + "," + w.Host("a2").Cgroup}
	w.must(w.agent.Start())
}

// eventually waits until ok returns true.
func (w *world) eventually(what string, ok func() bool) {
	w.t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			report, _ := json.MarshalIndent(w.report(), "", " ")
			w.t.Fatalf("waited %v in vain for this: %s; the agent sees %s", patience, what, report)
		}
	}
}

// report asks the agent what it sees.
func (w *world) report() *hoststack.Report {
	w.t.Helper()
	r := &hoststack.Report{}
	w.must(api.NewClient(w.agent.Socket()).Get(context.Background(), api.MeshSessionsPath, r))
	return r
}

// programOf returns what the agent sees of a process; nothing if it does not see it.
func (w *world) programOf(pid int) hoststack.Program {
	w.t.Helper()
	return find(w.report(), pid)
}

func find(r *hoststack.Report, pid int) hoststack.Program {
	if i := slices.IndexFunc(r.Programs, func(p hoststack.Program) bool { return slices.Contains(p.PIDs, pid) }); i >= 0 {
		return r.Programs[i]
	}
	return hoststack.Program{}
}

// a run is a program in a pod.
type run struct {
	*lab.Cmd
	w      *world
	stdin  io.WriteCloser
	stdout *bufio.Reader
	stderr bytes.Buffer
}

// start starts a program in a pod, with the library in LD_PRELOAD, as a user.
func (w *world) start(pod, library string, user uint32, argv ...string) *run {
	w.t.Helper()
	r := &run{Cmd: w.Host(pod).Command(context.Background(), argv...), w: w}
	r.Env = append(os.Environ(), "LD_PRELOAD="+library, "BEELINE_HOSTSTACK_INCLUDE=127.0.0.0/8", "BEELINE_HOSTSTACK_AFTER=1")
	if user != 0 {
		r.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
	}
	var err error
	r.stdin, err = r.StdinPipe()
	w.must(err)
	out, err := r.StdoutPipe()
	w.must(err)
	r.stdout, r.Stderr = bufio.NewReader(out), &r.stderr
	w.must(r.Start())
	w.t.Cleanup(func() {
		r.Process.Kill()
		r.Wait()
		if w.t.Failed() && r.stderr.Len() > 0 {
			w.t.Logf("%s printed:\n%s", strings.Join(argv, " "), &r.stderr)
		}
	})
	return r
}

func (w *world) startPreloaded(pod string, argv ...string) *run {
	w.t.Helper()
	return w.start(pod, w.library, 0, argv...)
}

// line reads a line that the program prints.
func (r *run) line() string {
	r.w.t.Helper()
	text := make(chan string, 1)
	go func() {
		line, err := r.stdout.ReadString('\n')
		if err != nil {
			line = err.Error()
		}
		text <- strings.TrimSpace(line)
	}()
	select {
	case line := <-text:
		return line
	case <-time.After(patience):
		r.w.t.Fatalf("%v prints nothing within %v", r.Args, patience)
		return ""
	}
}

// metric returns the sum of a metric's series that have a label's value.
func (w *world) metric(name, label, value string) (sum float64) {
	w.t.Helper()
	var all []api.Metric
	w.must(api.NewClient(w.agent.Socket()).Get(context.Background(), api.MetricsPath, &all))
	found := false
	for _, m := range all {
		if m.Name == name && m.Labels[label] == value {
			sum, found = sum+m.Value, true
		}
	}
	if !found {
		w.t.Fatalf("there is no metric %s with %s=%q", name, label, value)
	}
	return sum
}
