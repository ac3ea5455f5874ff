// SPDX-License-Identifier: Apache-2.0

// Package harness has what all parts of the benchmark measure with: a run and its settings, labs with agents and
// servers, Services, loads, the machine, common metrics, and the text of the results.
package harness

import (
	"io"
	"regexp"
	"time"

	"beeline.io/beeline/bench/result"
)

// Settings are those of a run that parts read.
type Settings struct {
	Program string
	// ControlPlane is Kubernetes, for the sides with kube-proxy; optional.
	ControlPlane string
	// Envoy is a proxy of the part mesh; optional.
	Envoy string
	Runs  int
	Slice time.Duration
	CPUs  string
	Smoke bool
	Only  *regexp.Regexp // nil: all cases
}

// Bench is one run.
type Bench struct {
	Settings
	Report
	One, Two result.CPUPair // the CPUs of the endpoints
}

// New starts a run without results, which is printed to out.
func New(s Settings, out io.Writer) (*Bench, error) {
	b := &Bench{Settings: s, Report: Report{Out: out}}
	var err error
	if b.One, b.Two, err = ChooseCPUs(); err != nil {
		return nil, err
	}
	b.Results = &result.File{
		Schema: result.Schema, Started: time.Now().UTC().Truncate(time.Second), Machine: thisMachine(), LoadBefore: LoadAverage(),
		Settings: result.Settings{Runs: s.Runs, Slice: s.Slice.Seconds(), CPUs: s.CPUs, One: b.One, Two: b.Two, Smoke: s.Smoke},
	}
	return b, nil
}
