// SPDX-License-Identifier: Apache-2.0

package api

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
