// SPDX-License-Identifier: Apache-2.0

// Command mutants plants small faults in the sources, one at a time, and runs the tests that have to notice each. See
// docs/develop/working.md.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
)

const usage = `mutants plants faults of test/mutants/list, and runs the tests that have to notice each.

scripts/mutants [--only REGEXP] [--jobs N] [PART...]

Without a PART it tests all. It exits with 1 if a fault is not noticed, if a test fails without it, or if the list no
longer fits the sources.

`

func main() {
	only := flag.String("only", "", "test only mutants whose name matches this regular expression")
	jobs := flag.Int("jobs", runtime.NumCPU(), "how many mutants are tested at the same time")
	keep := flag.Bool("output", false, "print the output of each failed test")
	flag.Usage = func() { fmt.Fprint(flag.CommandLine.Output(), usage); flag.PrintDefaults() }
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ok, err := run(ctx, *only, *jobs, *keep, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// run tests the mutants of parts, in the sources of the working directory.
func run(ctx context.Context, only string, jobs int, keep bool, names []string) (ok bool, err error) {
	root, err := os.Getwd()
	if err != nil {
		return false, err
	}
	mutants, err := selected(filepath.Join(root, "test/mutants/list"), only, names)
	if err != nil {
		return false, err
	}
	for _, m := range mutants {
		if _, err := m.apply(root); err != nil {
			return false, err
		}
	}
	b, err := newBuilder(root)
	if err != nil {
		return false, err
	}
	defer b.close()
	r := &runner{builder: b, jobs: max(jobs, 1), keep: keep, out: os.Stdout}
	return r.all(ctx, mutants)
}

// selected returns the mutants of the named parts, or of all, whose name matches.
func selected(folder, only string, names []string) ([]*mutant, error) {
	known, err := parts(folder)
	if err != nil {
		return nil, err
	}
	match, err := regexp.Compile(only)
	if err != nil {
		return nil, fmt.Errorf("--only: %w", err)
	}
	if len(names) == 0 {
		names = known
	}
	var mutants []*mutant
	for _, part := range names {
		if !slices.Contains(known, part) {
			return nil, fmt.Errorf("there is no part %q: choose of %s", part, strings.Join(known, ", "))
		}
		list, err := readList(folder, part)
		if err != nil {
			return nil, err
		}
		for _, m := range list {
			if match.MatchString(m.name) {
				mutants = append(mutants, m)
			}
		}
	}
	if len(mutants) == 0 {
		return nil, fmt.Errorf("no mutant of %s matches %q", strings.Join(names, ", "), only)
	}
	return mutants, nil
}
