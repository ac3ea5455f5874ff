// SPDX-License-Identifier: Apache-2.0

// Command suite runs the steps of `make test` and of its relatives one after the other, a failed one
// notwithstanding. It keeps passing tests quiet, shows what failing ones print, says at least every
// 30 seconds what it is at, and ends with totals, and with what was skipped and why. Its exit status is
// 1 if anything failed.
package main

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"
)

const usage = `usage: suite [--log FILE] [--beat DURATION] --go NAME=COMMAND | --run NAME=COMMAND | --quiet NAME=COMMAND ...

Steps run in the order given, each by /bin/sh:
  --go     prints what go test -json prints
  --run    prints text, which is shown, lines like those of test/kernels/summary.awk among it
  --quiet  prints text, which is shown if it fails
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

// stepFlag appends to a list that flags of all kinds share, so that their order is kept.
type stepFlag struct {
	kind kind
	list *[]step
}

func (f stepFlag) String() string { return "" }
func (f stepFlag) Type() string   { return "NAME=COMMAND" }

func (f stepFlag) Set(value string) error {
	name, command, ok := strings.Cut(value, "=")
	if !ok || name == "" || command == "" {
		return fmt.Errorf("%q: write NAME=COMMAND", value)
	}
	*f.list = append(*f.list, step{kind: f.kind, name: name, command: command})
	return nil
}

func main() {
	var steps []step
	flags := pflag.NewFlagSet("suite", pflag.ContinueOnError)
	flags.Usage = func() { fmt.Fprint(os.Stderr, usage) }
	for _, kind := range []kind{kindGo, kindRun, kindQuiet} {
		flags.Var(stepFlag{kind, &steps}, string(kind), "")
	}
	logPath := flags.String("log", "", "")
	beat := flags.Duration("beat", 30*time.Second, "")
	err := flags.Parse(os.Args[1:])
	if err == nil && (len(steps) == 0 || flags.NArg() > 0) {
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
	if !run(steps, newConsole(os.Stdout, *beat), log, *logPath) {
		os.Exit(1)
	}
}

// openLog opens the file that receives all that the steps print; none is asked for by "".
func openLog(path string) (io.Writer, error) {
	if path == "" {
		return io.Discard, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	return os.Create(path)
}

// run runs all steps, prints the summary and says whether nothing failed. A signal ends the
// step that runs and leaves out the rest.
func run(steps []step, c *console, log io.Writer, logPath string) bool {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	defer c.stop()
	var results []*result
	for _, s := range steps {
		r := newResult(s)
		results = append(results, r)
		if ended := r.run(c, log, signals); !ended {
			c.say("interrupted: the steps after %s are left out", s.name)
			summarize(c, results, logPath)
			return false
		}
	}
	return summarize(c, results, logPath)
}
