// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
)

// /debug/flags/v takes a verbosity of klog as kube-proxy's does, and a wrong request leaves the log level.
func TestSetVerbosity(t *testing.T) {
	level := new(slog.LevelVar)
	a := &Agent{config: Config{Logged: level}, log: slog.New(slog.DiscardHandler)}
	for _, c := range []struct {
		method, body string
		status       int
		answer       string
		level        slog.Level
	}{
		{"PUT", "4", 200, "successfully set klog.logging.verbosity to 4", slog.LevelDebug},
		{"PUT", "debug", 400, "send a number", slog.LevelDebug},
		{"GET", "", 406, "unsupported http method", slog.LevelDebug},
		{"PUT", "3", 200, "successfully set klog.logging.verbosity to 3", slog.LevelInfo},
	} {
		w := httptest.NewRecorder()
		a.setVerbosity(w, httptest.NewRequest(c.method, "/debug/flags/v", strings.NewReader(c.body)))
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.answer) || level.Level() != c.level {
			t.Errorf("%s %q: %d %q, level %v", c.method, c.body, w.Code, w.Body, level.Level())
		}
	}
}
