// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"beeline.io/beeline/internal/api"
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
			t.Errorf("RemoveSocket(%q): the file stays: %t (%v), want %t; \"running\" is the socket of an agent that listens, \"killed\" of one that does not", name, !stays, err, stays)
		}
		if pins := api.PinsOf(path); name == "running" && pins != "/pins" || name != "running" && pins != "" {
			t.Errorf("RemoveSocket(%q): the link to the agent's pins leads to %q, want /pins for the agent that listens, and no link for others", name, pins)
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
