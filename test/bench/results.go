// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// results is what -o writes: all that is needed to judge the figures later, or
// to compare them with others.
type results struct {
	Schema     int       `json:"schema"` // of this file, 1
	Started    time.Time `json:"started"`
	Took       float64   `json:"tookSeconds"`
	Machine    machine   `json:"machine"`
	LoadBefore string    `json:"loadBefore"`
	LoadAfter  string    `json:"loadAfter"`
	Noise      noise     `json:"noise"`
	Program    string    `json:"program"` // its version, which names the commit
	Runs       int       `json:"runs"`
	Slice      float64   `json:"sliceSeconds"`
	Smoke      bool      `json:"smoke,omitempty"`

	Sockets  []socketResult   `json:"sockets,omitempty"`
	Hook     []hookResult     `json:"hook,omitempty"`
	Edge     []edgeResult     `json:"edge,omitempty"`
	Balancer []balancerResult `json:"balancer,omitempty"`
	Control  []controlResult  `json:"control,omitempty"`
	Changes  []changesResult  `json:"changes,omitempty"`
}

func newResults(ctx context.Context, s settings) (results, error) {
	r := results{
		Schema: 1, Started: time.Now().UTC(), Machine: thisMachine(), LoadBefore: loadAverage(),
		Runs: s.runs, Slice: s.slice.Seconds(), Smoke: s.smoke,
	}
	version, err := exec.CommandContext(ctx, s.program, "version").Output()
	if err != nil {
		return r, fmt.Errorf("--program %s: %w (`make build` makes it)", s.program, err)
	}
	r.Program = strings.TrimSpace(string(version))
	return r, nil
}

func (r *results) print(b *bench) {
	b.say("%s, %s", r.Program, r.Started.Format(time.DateTime))
	b.say("%s", r.Machine)
	b.say("Load average %s.", r.LoadBefore)
	if r.Smoke {
		b.say("A smoke test: the figures mean nothing.")
	}
}

// write writes the file in one step.
func (r *results) write(path string) error {
	text, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	hidden := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	if err := os.WriteFile(hidden, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("-o: %w", err)
	}
	return os.Rename(hidden, path)
}
