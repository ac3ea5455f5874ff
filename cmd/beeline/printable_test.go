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
	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/cluster/source"
	"beeline.io/beeline/internal/report/assess"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/tables/reconcile"
)

// escape is hostile text from a process, certificate or server: it sets the title of the terminal and forges a
// line.
const escape = "evil\x1b]0;x\x07\u009b2J\n! All is well.\t\x9b"

// captured returns what f prints to standard output and standard error.
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

// wantHarmless fails if a terminal would interpret a text.
func wantHarmless(t *testing.T, what, text string) {
	t.Helper()
	if !strings.Contains(text, "evil") {
		t.Errorf("%s lacks the text: %q", what, text)
	}
	if i := strings.IndexFunc(text, func(r rune) bool { return r < ' ' && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 || r == '\ufffd' }); i >= 0 {
		t.Errorf("%s has %q at %d of %q", what, text[i:min(len(text), i+8)], i, text)
	}
	if strings.Contains(text, "\n! All is well.") {
		t.Errorf("%s has a forged line:\n%s", what, text)
	}
}

// TestNothingReachesTheTerminal: text from untrusted sources is escaped in all text output, in logs and in
// errors.
func TestNothingReachesTheTerminal(t *testing.T) {
	now := time.Now()
	ref := service.Ref{Kind: service.KindService, Namespace: "default", Name: "web"}
	down := api.BackendHealth{Service: "default/web", Why: "certificate of " + escape, Since: now, LastProbe: now}
	problems := condition.List{condition.AddressTaken.New("%s", escape).Do("%s", escape)}
	status := &api.Status{
		Running: true, Answered: true, EdgeUnavailable: escape, UnreadablePins: escape,
		Source:              api.Source{Problems: condition.List{condition.SourceError.New("%s", escape).At(escape)}, Connection: &source.Connection{Error: escape}},
		ObjectsWithProblems: []reconcile.Status{{Owner: ref, State: reconcile.Failed, Reasons: []string{escape}, Problems: problems}},
		PortConflicts:       []api.PortConflict{{PID: 1, Process: escape}}, PortConflictsUnavailable: "evil",
		Health: &api.HealthStatus{Down: []api.BackendHealth{down}},
	}
	s := &api.Service{Name: "web", Reasons: []string{escape}, Problems: problems,
		Health: &api.Health{Check: "tcp", Backends: []api.BackendHealth{down}}}
	assess.Status(status)
	for what, print := range map[string]func(io.Writer){
		"status":       func(w io.Writer) { statusText(w, status, false) },
		"status -v":    func(w io.Writer) { statusText(w, status, true) },
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
			newLogger(&agent.Config{LogFormat: format}).Error("evil "+escape, "process", escape, escape, 1)
		}))
	}
	text := captured(t, func() {
		if err := write(newRootCommand().OutOrStdout(), "json", status, nil); err != nil {
			t.Error(err)
		}
	})
	wantHarmless(t, "JSON", text)
	var got api.Status
	if err := json.NewDecoder(bytes.NewBufferString(text)).Decode(&got); err != nil || got.PortConflicts[0].Process != strings.ToValidUTF8(escape, "\ufffd") {
		t.Errorf("JSON decodes to %q, %v", got.PortConflicts, err)
	}
}
