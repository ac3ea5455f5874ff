// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"beeline.io/beeline/internal/agent"
	"beeline.io/beeline/internal/observe"
	"beeline.io/beeline/internal/service"
	"beeline.io/beeline/internal/source"
	"beeline.io/beeline/internal/sync"
)

// escape is what a hostile process, certificate or server has in its text: the title of the terminal, and a line
// that is not ours.
const escape = "evil\x1b]0;x\x07\u009b2J\n! All is well.\t\x9b"

// captured is what f prints to the standard output and the standard error.
func captured(t *testing.T, f func()) string {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, errOut := os.Stdout, os.Stderr
	os.Stdout, os.Stderr = w, w
	defer func() { os.Stdout, os.Stderr = out, errOut }()
	text := make(chan string)
	go func() {
		all, _ := io.ReadAll(r)
		text <- string(all)
	}()
	f()
	w.Close()
	return <-text
}

// wantHarmless fails if a terminal would act on a text.
func wantHarmless(t *testing.T, what, text string) {
	t.Helper()
	if !strings.Contains(text, "evil") {
		t.Errorf("%s does not have the text at all: %q", what, text)
	}
	if i := strings.IndexFunc(text, func(r rune) bool { return r < ' ' && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 || r == '\ufffd' }); i >= 0 {
		t.Errorf("%s has %q at %d of %q", what, text[i:min(len(text), i+8)], i, text)
	}
	if strings.Contains(text, "\n! All is well.") {
		t.Errorf("%s has a line that is not ours:\n%s", what, text)
	}
}

// TestNothingReachesTheTerminal: text from outside is harmless in all output for people, in logs and in errors.
func TestNothingReachesTheTerminal(t *testing.T) {
	now := time.Now()
	ref := service.Ref{Kind: service.KindService, Namespace: "default", Name: "web"}
	down := observe.BackendHealth{Service: "default/web", Why: "certificate of " + escape, Since: now, Last: now}
	status := &observe.Status{
		Running: true, Answered: true, Unserved: escape, Unreadable: escape,
		Source:    observe.Source{Problems: []string{escape}, Connection: &source.Connection{Error: escape}},
		Objects:   []sync.Status{{Owner: ref, State: sync.Failed, Reasons: []string{escape}, Problems: []string{escape}}},
		HeldPorts: []observe.HeldPort{{PID: 1, Process: escape}}, HeldPortsUnknown: "evil",
		Health: &observe.HealthStatus{Down: []observe.BackendHealth{down}},
	}
	s := &observe.Service{Name: "web", Reasons: []string{escape}, Problems: []string{escape},
		Health: &observe.Health{Check: "tcp", Backends: []observe.BackendHealth{down}}}
	for what, print := range map[string]func(io.Writer){
		"status":       func(w io.Writer) { statusText(w, status) },
		"service show": func(w io.Writer) { serviceDetails(w, s, true) },
		"errors":       func(w io.Writer) { io.WriteString(w, strings.ReplaceAll(escape, "\n", "")) },
	} {
		wantHarmless(t, what, captured(t, func() {
			if err := write(newRootCommand().OutOrStdout(), "table", nil, print); err != nil {
				t.Error(err)
			}
		}))
	}
	for _, format := range []string{"text", "json"} {
		wantHarmless(t, "the log as "+format, captured(t, func() {
			newLogger(agent.Config{LogFormat: format}).Error("evil "+escape, "process", escape, escape, 1)
		}))
	}
	text := captured(t, func() {
		if err := write(newRootCommand().OutOrStdout(), "json", status, nil); err != nil {
			t.Error(err)
		}
	})
	wantHarmless(t, "JSON", text)
	var got observe.Status
	if err := json.NewDecoder(bytes.NewBufferString(text)).Decode(&got); err != nil || got.HeldPorts[0].Process != strings.ToValidUTF8(escape, "\ufffd") {
		t.Errorf("JSON reads as %q, %v", got.HeldPorts, err)
	}
}
