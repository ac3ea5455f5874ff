// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Cleanup removes the socket of a killed agent, but neither that of a running agent nor a file that is not a
// socket.
func TestRemoveSocket(t *testing.T) {
	dir := t.TempDir()
	listen := func(name string) *net.UnixListener {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, name), Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		return l
	}
	defer listen("running").Close()
	listen("killed").Close()
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"running", "killed"} {
		if err := linkPins(filepath.Join(dir, name), "/pins"); err != nil {
			t.Fatal(err)
		}
	}
	for name, stays := range map[string]bool{"running": true, "killed": false, "file": true, "missing": false} {
		path := filepath.Join(dir, name)
		RemoveSocket(path)
		if _, err := os.Lstat(path); stays != !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: kept %v (%v), want %v", name, !stays, err, stays)
		}
		if pins := PinsOf(path); name == "running" && pins != "/pins" || name != "running" && pins != "" {
			t.Errorf("%s: the link to the pins leads to %q", name, pins)
		}
	}
}

// An agent does not replace a file that is no socket.
func TestListenBesideAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.sock")
	if err := os.WriteFile(path, []byte("notes"), 0o600); err != nil {
		t.Fatal(err)
	}
	if l, err := listen(path, "/pins"); err == nil {
		l.Close()
		t.Error("an agent listens in place of a file")
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "notes" {
		t.Errorf("the file has %q, %v", text, err)
	}
}

// refused is a transport without permission to open the agent's socket.
type refused struct{}

func (refused) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, &net.OpError{Op: "dial", Net: "unix", Err: os.NewSyscallError("connect", syscall.EACCES)}
}

// A user without permission to open the socket does not get the error that no agent is running.
func TestSocketOfAnotherUser(t *testing.T) {
	c := Client{Client: http.Client{Transport: refused{}}}
	err := c.Get(context.Background(), StatusPath, new(any))
	if err == nil || errors.Is(err, ErrNotRunning) || !strings.Contains(err.Error(), "run this as root") {
		t.Errorf("%v, want an error that says to run this as root", err)
	}
}

// An agent that waits for a CPU gets more time to answer than one that hangs.
func TestSlowAgentIsAlive(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	atWork := time.Now().Add(answerTime + answerTime/2)
	go http.Serve(l, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		for time.Now().Before(atWork) {
		}
	}))
	if err := NewClient(socket).Alive(t.Context()); err != nil {
		t.Errorf("at work: %v", err)
	}
	idle := filepath.Join(t.TempDir(), "agent.sock")
	hung, err := net.Listen("unix", idle)
	if err != nil {
		t.Fatal(err)
	}
	defer hung.Close()
	if err := NewClient(idle).Alive(t.Context()); !errors.Is(err, ErrNoAnswer) {
		t.Errorf("hung: %v", err)
	}
}
