// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"beeline.io/beeline/internal/api"
)

// arguments are those of commands that need some.
var arguments = map[string]string{
	"beeline service show":    "default/web",
	"beeline mesh verify":     "default/web",
	"beeline explain packet":  "198.51.100.7 192.0.2.1:80",
	"beeline explain connect": "10.10.1.11 10.96.0.1:80",
	"beeline flow flush":      "--all",
}

// unasked are commands with --agent-socket or --pins that read neither: they make, remove or check them.
var unasked = map[string]bool{"beeline agent": true, "beeline check": true, "beeline cleanup": true}

// pinned are commands that read the pins of the agent at a socket.
var pinned = map[string]bool{"beeline flow list": true, "beeline flow flush": true, "beeline explain packet": true, "beeline explain connect": true}

// inspecting returns the commands that ask an agent or read its pins, with their arguments and a flag that names the
// place.
func inspecting(flag string) (all []string) {
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		if path := cmd.CommandPath(); cmd.Flags().Lookup(flag) != nil && !unasked[path] && (flag == pinsFlag || !pinned[path]) {
			all = append(all, strings.TrimSpace(strings.TrimPrefix(cmd.CommandPath(), "beeline ")+" "+arguments[cmd.CommandPath()]))
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(newRootCommand())
	return all
}

// foreign matches words of Go and of HTTP, which tell a user nothing.
var foreign = regexp.MustCompile(`(?i)http|\b404\b|\b500\b|EOF|json|deadline|Get "|\bdial\b|canceled|invalid character|file does not exist|no such file`)

// listening makes a socket on which serve answers connections.
func listening(t *testing.T, serve func(net.Listener)) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "agent.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go serve(l)
	return path
}

// answering returns an agent that answers everything with a status and a text.
func answering(code int, text string) func(net.Listener) {
	return func(l net.Listener) {
		http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			io.WriteString(w, text)
		}))
	}
}

// each serves each connection by a function.
func each(serve func(net.Conn)) func(net.Listener) {
	return func(l net.Listener) {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			serve(conn)
			conn.Close()
		}
	}
}

// Every command that asks an agent says within seconds what to do if there is none, if it hangs, is of another version,
// fails or ends, and if something else has the socket; never in the words of Go or of HTTP.
func TestAgentWithoutAnswer(t *testing.T) {
	const slow = 5 * time.Second
	commands := inspecting(socketFlag)
	if len(commands) < 8 {
		t.Fatalf("only %q ask an agent", commands)
	}
	earlier := http.NewServeMux()
	earlier.HandleFunc("/v1/", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "{}") })
	for _, test := range []struct {
		name, want string
		socket     string
	}{
		{"no agent", `no agent answers on .*: start one, give its socket|no agent answers on .*: start one, or give its socket`, filepath.Join(t.TempDir(), "none")},
		{"hangs", `does not answer: (read the pinned tables with --pins|look without the agent|.*restart it)`, listening(t, func(net.Listener) {})},
		{"another schema", `another version .*or restart it with this one|set --(mesh|offload)-.* of the agent.*earlier version: restart it`, listening(t, func(l net.Listener) { http.Serve(l, earlier) })},
		{"fails", `the agent cannot answer: the tables are gone`, listening(t, answering(http.StatusInternalServerError, "the tables are gone"))},
		{"answers otherwise", `is no agent: give the agent's socket with --agent-socket`, listening(t, answering(http.StatusOK, "<html>"))},
		{"speaks otherwise", `is no agent: give the agent's socket with --agent-socket`, listening(t, each(func(c net.Conn) { io.WriteString(c, "220 mail ready\r\n"); c.Read(make([]byte, 4096)) }))},
		{"ends", `ended before it had answered: ask again`, listening(t, each(func(c net.Conn) { c.Read(make([]byte, 1)) }))},
	} {
		t.Run(test.name, func(t *testing.T) {
			var group sync.WaitGroup
			for _, command := range commands {
				group.Go(func() {
					begin := time.Now()
					err := execute(t.Context(), fmt.Sprintf("%s --%s %s", command, socketFlag, test.socket))
					wantRemedy(t, command, err, test.want)
					if took := time.Since(begin); took > slow {
						t.Errorf("%s took %v", command, took)
					}
				})
			}
			group.Wait()
		})
	}
}

// Every command that reads pins says what to do if there are none.
func TestNoPins(t *testing.T) {
	commands := inspecting(pinsFlag)
	if len(commands) < 8 {
		t.Fatalf("only %q read pins", commands)
	}
	for _, command := range commands {
		wantRemedy(t, command, execute(t.Context(), command+" --pins "+filepath.Join(t.TempDir(), "none")), `set --pins to the agent's`)
	}
}

// A command that reads pins alone finds them by the agent's socket, also of an agent that does not run.
func TestPinsBySocket(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	read := func(path, want string) {
		command := strings.TrimPrefix(path+" "+arguments[path], "beeline ")
		wantRemedy(t, command, execute(t.Context(), command+" --agent-socket "+socket), want)
	}
	for path := range pinned {
		read(path, "no agent has listened on .*--pins")
	}
	pins := filepath.Join(t.TempDir(), "pins")
	if err := os.Symlink(pins, api.PinsLink(socket)); err != nil {
		t.Fatal(err)
	}
	for path := range pinned {
		read(path, "(?s)"+pins+".*set --pins to the agent's")
	}
}

func wantRemedy(t *testing.T, command string, err error, want string) {
	t.Helper()
	if err == nil || !regexp.MustCompile(want).MatchString(err.Error()) {
		t.Errorf("%s: %v; want %q", command, err, want)
	} else if word := foreign.FindString(err.Error()); word != "" {
		t.Errorf("%s says %q: %v", command, word, err)
	}
}

// execute runs a command with arguments.
func execute(ctx context.Context, args string) error {
	root := newRootCommand()
	root.SetArgs(strings.Fields(args))
	root.SetOut(io.Discard)
	root.SetErr(io.Discard)
	return root.ExecuteContext(ctx)
}

// monitor says when its agent no longer answers, and when it does again. The stream of events tells neither.
func TestMonitorNotesSilence(t *testing.T) {
	var hung sync.RWMutex
	socket := listening(t, func(l net.Listener) {
		http.Serve(l, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			hung.RLock()
			defer hung.RUnlock()
		}))
	})
	notes, write := io.Pipe()
	lines := bufio.NewScanner(notes)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	hung.Lock()
	go (&monitor{notes: write}).noteSilence(ctx, api.NewClient(socket), time.Millisecond)
	for _, want := range []string{"the agent does not answer", "the agent answers again"} {
		if !lines.Scan() || !strings.HasPrefix(lines.Text(), want) {
			t.Fatalf("%q, want %q", lines.Text(), want)
		}
		if want == "the agent does not answer" {
			hung.Unlock()
		}
	}
}
