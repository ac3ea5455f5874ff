// SPDX-License-Identifier: Apache-2.0

// Package node runs the beeline program on the nodes of a lab, each agent with
// manifests, pins and socket of its own.
package node

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/test/lab"
)

// startTimeout bounds the time until an agent is ready, waitTimeout that until its status is as wanted. Emulated
// machines need much of both.
const (
	startTimeout = 15 * time.Minute
	waitTimeout  = 6 * time.Minute
)

// Agent is an agent on a node of a lab, running or not.
type Agent struct {
	Host *lab.Host
	// Name separates its pins and its socket from those of another agent on the host; empty for the first.
	Name string
	// Program is the beeline binary.
	Program string
	// Manifests is the folder or file it reads; empty if it follows the API server
	// of Kubeconfig.
	Manifests  string
	Kubeconfig string
	// MaxFlows is its --max-flows; 0 for the default.
	MaxFlows int
	// Flags are added to its command line. They override earlier values of the same flags.
	Flags []string
	// Wrap is a command that runs the agent's.
	Wrap []string
	// Env is added to the environment of the agent and of its CLI.
	Env []string
	// EdgeMode is its --edge-mode; empty for the default.
	EdgeMode string
	// Log receives what it prints; nil for nowhere.
	Log io.Writer
	// Detached is a file for its output instead. The agent then outlives this program, except in a
	// temporary lab.
	Detached string

	cmd  *lab.Cmd
	done chan error
	last *tail
}

// BPFFS is the directory of the agent's pins.
func (a *Agent) BPFFS() string { return filepath.Join(a.Host.BPFFS, cmp.Or(a.Name, "beeline")) }

// Socket is the agent's unix socket.
func (a *Agent) Socket() string { return filepath.Join(a.Host.RunDir, cmp.Or(a.Name, "agent")+".sock") }

// Command prepares the agent's process.
func (a *Agent) Command(ctx context.Context) *lab.Cmd {
	from := []string{"--manifests", a.Manifests}
	if a.Manifests == "" {
		from = []string{"--kubeconfig", a.Kubeconfig}
	}
	args := []string{a.Program, "agent", from[0], from[1],
		"--node-name", a.Host.Name,
		"--pins", a.BPFFS(),
		"--agent-socket", a.Socket(),
		"--cgroup-root", a.Host.CgroupRoot,
	}
	if a.Name != "" {
		// The first agent on the host has the default addresses.
		args = append(args, "--healthz-bind-address=", "--metrics-bind-address=")
	}
	if a.MaxFlows > 0 {
		args = append(args, "--max-flows", strconv.Itoa(a.MaxFlows))
	}
	args = append(args, a.Flags...)
	if a.EdgeMode != "" {
		args = append(args, "--edge-mode", a.EdgeMode)
	}
	return a.command(ctx, append(slices.Clone(a.Wrap), args...)...)
}

// command prepares a process of the host with the agent's environment.
func (a *Agent) command(ctx context.Context, args ...string) *lab.Cmd {
	cmd := a.Host.Command(ctx, args...)
	if len(a.Env) > 0 {
		cmd.Env = append(os.Environ(), a.Env...)
	}
	return cmd
}

// Start starts the agent and returns when it has its manifests in the tables and its programs attached, or has
// ended.
func (a *Agent) Start() error {
	if err := a.StartOnly(); err != nil {
		return err
	}
	return a.WaitReady()
}

// WaitReady waits until a started agent is ready, or has ended.
func (a *Agent) WaitReady() error {
	return a.pollStatus(startTimeout, "ready", func(s *api.Status) bool {
		return s.Sync.Synced && len(s.Attachments) == s.ExpectedAttachments
	})
}

// StartOnly starts the agent and does not wait.
func (a *Agent) StartOnly() error {
	if a.Running() {
		return fmt.Errorf("the agent on %s runs already", a.Host.Name)
	}
	a.last = &tail{}
	a.cmd = a.Command(context.Background())
	var out io.Writer = a.last
	if a.Log != nil {
		out = io.MultiWriter(a.last, a.Log)
	}
	a.cmd.Stdout, a.cmd.Stderr = out, out
	if a.Detached != "" {
		log, err := a.detach()
		if err != nil {
			return err
		}
		defer log.Close()
	}
	if err := a.cmd.Start(); err != nil {
		return err
	}
	a.done = make(chan error, 1)
	go func() { a.done <- a.cmd.Wait() }()
	return nil
}

// Running reports whether the process was started and has not been waited for.
func (a *Agent) Running() bool { return a.cmd != nil }

// PID is the running agent's.
func (a *Agent) PID() int { return a.cmd.Process.Pid }

// Wait waits until the process ends by itself. The error contains its output.
func (a *Agent) Wait() error { return a.waited(<-a.done) }

// WaitAtMost is Wait with a time limit: context.DeadlineExceeded if the process goes on.
func (a *Agent) WaitAtMost(limit time.Duration) error {
	select {
	case err := <-a.done:
		return a.waited(err)
	case <-time.After(limit):
		return context.DeadlineExceeded
	}
}

func (a *Agent) waited(err error) error {
	a.cmd = nil
	if err != nil {
		return fmt.Errorf("%w; it printed:\n%s", err, a.last)
	}
	return nil
}

// Stop ends the agent as a service manager does. Its programs stay attached.
func (a *Agent) Stop() error { return a.end(syscall.SIGTERM) }

// Kill ends the agent as a crash does.
func (a *Agent) Kill() error {
	err := a.end(syscall.SIGKILL)
	if err != nil && strings.HasPrefix(err.Error(), "signal: killed") {
		return nil
	}
	return err
}

func (a *Agent) end(signal syscall.Signal) error {
	if !a.Running() {
		return nil
	}
	if err := a.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return a.Wait()
}

// Status gets the running agent's status.
func (a *Agent) Status() (*api.Status, error) {
	var s api.Status
	return &s, api.NewClient(a.Socket()).Get(context.Background(), api.StatusPath, &s)
}

// Tables gets the contents of the tables from the running agent.
func (a *Agent) Tables() (*api.Tables, error) {
	var t api.Tables
	return &t, api.NewClient(a.Socket()).Get(context.Background(), api.TablesPath, &t)
}

// WaitFor waits until the agent's status is as wanted, which `what` describes.
func (a *Agent) WaitFor(what string, ok func(*api.Status) bool) error {
	return a.pollStatus(waitTimeout, what, ok)
}

func (a *Agent) pollStatus(limit time.Duration, what string, ok func(*api.Status) bool) error {
	return a.poll(limit, what, func() (bool, error) {
		s, err := a.Status()
		return err == nil && ok(s), err
	})
}

// WaitForTables waits until the tables are as wanted.
func (a *Agent) WaitForTables(what string, ok func(*api.Tables) bool) error {
	return a.poll(waitTimeout, what, func() (bool, error) {
		t, err := a.Tables()
		return err == nil && ok(t), err
	})
}

func (a *Agent) poll(limit time.Duration, what string, ok func() (bool, error)) error {
	for begun := time.Now(); ; {
		asked := time.Now()
		good, err := ok()
		if good {
			return nil
		}
		select {
		case end := <-a.done:
			a.cmd = nil
			return fmt.Errorf("the agent on %s ended (%v) before it was %s; it printed:\n%s", a.Host.Name, end, what, a.last)
		default:
		}
		if time.Since(begun) > limit {
			return fmt.Errorf("the agent on %s is not %s after %s (last error: %v); it printed:\n%s", a.Host.Name, what, limit, err, a.last)
		}
		time.Sleep(PollPause(begun, asked))
	}
}

// PollPause is the pause between requests to an agent, given the times of the first one and of the last one. Each
// answer costs the agent CPU time, so constant polling would delay what is waited for: it takes at most a fifth of the
// time, and of long waits much less.
func PollPause(begun, asked time.Time) time.Duration {
	return max(5*time.Millisecond, 4*time.Since(asked), min(time.Since(begun)/16, 200*time.Millisecond))
}

// CLI runs another command of the program against this agent and returns its output. With --pins as the last
// argument it reads the agent's pins. The error is an *exec.ExitError with Stderr if it failed.
func (a *Agent) CLI(args ...string) (string, error) {
	args = append([]string{a.Program}, args...)
	switch {
	case slices.Contains(args, "cleanup"):
		args = append(args, "--agent-socket", a.Socket(), "--pins", a.BPFFS())
	case args[len(args)-1] == "--pins":
		args = append(args, a.BPFFS())
	case args[1] == "flow", args[1] == "explain":
		args = append(args, "--pins", a.BPFFS())
	default:
		args = append(args, "--agent-socket", a.Socket())
	}
	out, err := a.command(context.Background(), args...).Output()
	return string(out), err
}

// JSON is a report of the program as a failed test prints it: with the names of the API, and with what is behind
// pointers.
func JSON(report any) string {
	text, err := json.Marshal(report)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// WriteManifest atomically writes objects to a file of a folder. API types have their TypeMeta set.
func WriteManifest(folder, name string, objects ...runtime.Object) error {
	var text bytes.Buffer
	for _, o := range objects {
		document, err := yaml.Marshal(o)
		if err != nil {
			return err
		}
		fmt.Fprintf(&text, "---\n%s", document)
	}
	return WriteFile(folder, name, text.Bytes())
}

// WriteFile atomically writes a file of a folder.
func WriteFile(folder, name string, text []byte) error {
	hidden := filepath.Join(folder, "."+name)
	if err := os.WriteFile(hidden, text, 0o644); err != nil {
		return err
	}
	return os.Rename(hidden, filepath.Join(folder, name))
}

const tailSize = 64 << 10

// tail keeps the last 64 KiB written to it, or prints those of a file.
type tail struct {
	mu   sync.Mutex
	text []byte
	file string
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if len(t.text) > tailSize {
		t.text = t.text[len(t.text)-tailSize:]
	}
	return len(p), nil
}

func (t *tail) String() string {
	if t.file != "" {
		return endOf(t.file)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}
