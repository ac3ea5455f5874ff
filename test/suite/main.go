// SPDX-License-Identifier: Apache-2.0

// Command suite runs the steps of `make test` and its relatives one after the other, or side by side where told
// to, and continues after a failed one. It hides passing tests, shows what failing ones print, reports progress
// at least every 30 seconds, and ends with totals, and with skipped tests and why. Its exit status is 1 if
// anything failed.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/pflag"
)

const usage = `usage: suite [--log FILE] [--beat DURATION] [--beside] --go NAME=COMMAND | --run NAME=COMMAND | --quiet NAME=COMMAND ...

Steps run in the order given, each by /bin/sh:
  --go     prints what go test -json prints
  --run    prints text, which is shown, lines like those of test/kernels/summary.awk among it
  --quiet  prints text, which is shown if it fails
After --beside the next step begins together with the one before.
`

// kind says what a step prints.
type kind string

const (
	kindGo    kind = "go"
	kindRun   kind = "run"
	kindQuiet kind = "quiet"
)

// step is one command of a suite.
type step struct {
	kind    kind
	name    string
	command string
}

// plan is the result of the flags: groups of steps; the steps of a group run side by side.
type plan struct {
	groups [][]step
	beside bool // the next step belongs to the group of the last one
}

// stepFlag appends to a plan that all flags share, so that their order is kept.
type stepFlag struct {
	kind kind
	plan *plan
}

func (f stepFlag) String() string { return "" }
func (f stepFlag) Type() string   { return "NAME=COMMAND" }

func (f stepFlag) Set(value string) error {
	name, command, ok := strings.Cut(value, "=")
	if !ok || name == "" || command == "" {
		return fmt.Errorf("%q: write NAME=COMMAND", value)
	}
	f.plan.add(step{kind: f.kind, name: name, command: command})
	return nil
}

func (p *plan) add(s step) {
	if p.beside {
		last := &p.groups[len(p.groups)-1]
		*last = append(*last, s)
	} else {
		p.groups = append(p.groups, []step{s})
	}
	p.beside = false
}

// besideFlag marks the next step of a plan.
type besideFlag struct{ plan *plan }

func (f besideFlag) String() string { return "" }
func (f besideFlag) Type() string   { return "bool" }

func (f besideFlag) Set(value string) error {
	if value != "true" || len(f.plan.groups) == 0 || f.plan.beside {
		return fmt.Errorf("write it once, without a value, between two steps")
	}
	f.plan.beside = true
	return nil
}

func main() {
	var p plan
	flags := pflag.NewFlagSet("suite", pflag.ContinueOnError)
	flags.Usage = func() { fmt.Fprint(os.Stderr, usage) }
	for _, kind := range []kind{kindGo, kindRun, kindQuiet} {
		flags.Var(stepFlag{kind, &p}, string(kind), "")
	}
	flags.Var(besideFlag{&p}, "beside", "")
	flags.Lookup("beside").NoOptDefVal = "true"
	logPath := flags.String("log", "", "")
	beat := flags.Duration("beat", 30*time.Second, "")
	err := flags.Parse(os.Args[1:])
	if err == nil && (len(p.groups) == 0 || p.beside || flags.NArg() > 0) {
		err = fmt.Errorf("give at least one step and nothing else\n%s", usage)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "suite:", err)
		os.Exit(2)
	}
	log, err := openLog(*logPath)
	if err != nil {
		fmt.Fprintln(os.Stderr, "suite:", err)
		os.Exit(1)
	}
	if !run(p.groups, newConsole(os.Stdout, *beat), log, *logPath) {
		os.Exit(1)
	}
}

// openLog opens the file for all output of the steps; none if path is "".
func openLog(path string) (io.Writer, error) {
	if path == "" {
		return io.Discard, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	return os.Create(path)
}

// run runs all steps, prints the summary and reports whether nothing failed. A signal ends the running steps
// and skips the rest.
func run(groups [][]step, c *console, log io.Writer, logPath string) bool {
	interrupted, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	defer c.stop()
	var results []*result
	for _, group := range groups {
		var running sync.WaitGroup
		for _, s := range group {
			r := newResult(s)
			results = append(results, r)
			running.Go(func() { r.run(interrupted, c, log) })
		}
		running.Wait()
		if interrupted.Err() != nil {
			c.say("interrupted: the steps after %s were not run", group[len(group)-1].name)
			summarize(c, results, logPath)
			return false
		}
	}
	return summarize(c, results, logPath)
}
