// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"time"

	"beeline.io/beeline/test/controlplane"
	"beeline.io/beeline/test/lab"
)

// TB is the part of testing.TB that New uses.
type TB interface {
	lab.TB
	ArtifactDir() string
	Context() context.Context
	Failed() bool
	Logf(format string, args ...any)
}

var pause = flag.Duration("pause", 0, "keep the cluster of each test for so long after it, for inspection")

// New creates a lab with a server in each pod, and a cluster on it, for a test. If the test fails, the end of
// each program's log is shown; with `go test -artifacts` the whole logs are kept. TestMain has to call
// lab.Main.
func New(t TB) *Cluster {
	t.Helper()
	l := lab.New(t)
	if err := l.StartServers(); err != nil {
		t.Fatalf("%v", err)
	}
	begin := time.Now()
	c, err := Start(t.Context(), l)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Logf("the cluster on lab %s is up after %v", l.Name, time.Since(begin).Round(time.Millisecond))
	t.Cleanup(func() {
		if *pause > 0 {
			t.Logf("the cluster on lab %s stays for %v; its kubeconfig: %s", l.Name, *pause, c.Kubeconfig(controlplane.UserAdmin))
			time.Sleep(*pause)
		}
		if err := c.Stop(); err != nil {
			t.Errorf("%v", err)
		}
		if t.Failed() {
			c.showLogs(t)
		}
	})
	return c
}

func (c *Cluster) showLogs(t TB) {
	for _, p := range c.Processes() {
		t.Logf("%s on %s printed last:\n%s", p.Name, p.Host.Name, p.LogTail())
		text, err := os.ReadFile(p.Log)
		if err == nil {
			err = os.WriteFile(filepath.Join(t.ArtifactDir(), p.Host.Name+"-"+filepath.Base(p.Log)), text, 0o644)
		}
		if err != nil {
			t.Errorf("keeping a log: %v", err)
		}
	}
}
