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

const usage = `usage: suite [--log FILE] [--beat DURATION] [--beside | --then] --go NAME=COMMAND | --run NAME=COMMAND | --quiet NAME=COMMAND ...

Steps run in the order given, each by /bin/sh:
  --go     prints what go test -json prints
  --run    prints text, which is shown, lines like those of test/kernels/summary.awk among it
  --quiet  prints text, which is shown if it fails
After --beside the next step begins together with the one before; after --then it begins when that one ends. Steps
joined by these are a group. The next group begins when all steps of the group before have ended.
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

// A lane is steps that run one after the other, a group lanes that run side by side.
type (
	lane  []step
	group []lane
)

// plan is the result of the flags.
type plan struct {
	groups []group
	join   string // the flag that joins the next step to the group of the last one: "beside", "then" or ""
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
	if p.join == "" {
		p.groups = append(p.groups, nil)
	}
	g := &p.groups[len(p.groups)-1]
	if p.join != "then" {
		*g = append(*g, nil)
	}
	l := &(*g)[len(*g)-1]
	*l = append(*l, s)
	p.join = ""
}

// joinFlag joins the next step of a plan to the last one.
type joinFlag struct {
	name string
	plan *plan
}

func (f joinFlag) String() string { return "" }
func (f joinFlag) Type() string   { return "bool" }

func (f joinFlag) Set(value string) error {
	if value != "true" || len(f.plan.groups) == 0 || f.plan.join != "" {
		return fmt.Errorf("write it once, without a value, between two steps")
	}
	f.plan.join = f.name
	return nil
}

func main() {
	var p plan
	flags := pflag.NewFlagSet("suite", pflag.ContinueOnError)
	flags.Usage = func() { fmt.Fprint(os.Stderr, usage) }
	for _, kind := range []kind{kindGo, kindRun, kindQuiet} {
		flags.Var(stepFlag{kind, &p}, string(kind), "")
	}
	for _, name := range []string{"beside", "then"} {
		flags.Var(joinFlag{name, &p}, name, "")
		flags.Lookup(name).NoOptDefVal = "true"
	}
	logPath := flags.String("log", "", "")
	beat := flags.Duration("beat", 30*time.Second, "")
	err := flags.Parse(os.Args[1:])
	if err == nil && (len(p.groups) == 0 || p.join != "" || flags.NArg() > 0) {
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
func run(groups []group, c *console, log io.Writer, logPath string) bool {
	interrupted, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	defer c.stop()
	var results []*result
	for _, g := range groups {
		var running sync.WaitGroup
		for _, l := range g {
			var own []*result
			for _, s := range l {
				own = append(own, newResult(s))
			}
			results = append(results, own...)
			running.Go(func() {
				for _, r := range own {
					if interrupted.Err() == nil {
						r.run(interrupted, c, log)
					}
				}
			})
		}
		running.Wait()
		if interrupted.Err() != nil {
			c.say("interrupted: not all steps were run")
			summarize(c, results, logPath)
			return false
		}
	}
	return summarize(c, results, logPath)
}
