// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"regexp"
	"time"

	"beeline.io/beeline/bench/result"
)

// settings are those of a run that parts read.
type settings struct {
	program string
	// controlPlane is Kubernetes, for the sides with kube-proxy; optional.
	controlPlane string
	// envoy is a proxy of the part mesh; optional.
	envoy string
	runs  int
	slice time.Duration
	cpus  string
	smoke bool
	only  *regexp.Regexp // nil: all cases
}

// bench is one run.
type bench struct {
	settings
	report
	one, two result.CPUPair // the CPUs of the endpoints
}

// newBench starts a run without results, which is printed to out.
func newBench(s settings, out io.Writer) (*bench, error) {
	b := &bench{settings: s, report: report{out: out}}
	var err error
	if b.one, b.two, err = chooseCPUs(); err != nil {
		return nil, err
	}
	b.results = &result.File{
		Schema: result.Schema, Started: time.Now().UTC().Truncate(time.Second), Machine: thisMachine(), LoadBefore: loadAverage(),
		Settings: result.Settings{Runs: s.runs, Slice: s.slice.Seconds(), CPUs: s.cpus, One: b.one, Two: b.two, Smoke: s.smoke},
	}
	return b, nil
}
