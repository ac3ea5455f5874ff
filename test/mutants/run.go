// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync"
	"time"
)

// runner tests mutants, and prints a line for each.
type runner struct {
	builder                 *builder
	jobs                    int
	keep                    bool // print outputs of failed tests
	out                     io.Writer
	mutex                   sync.Mutex // of out and the counts
	passed, failed, excused int
}

// all tests the unchanged sources, and then each mutant. It reports whether every mutant was noticed that has to be.
func (r *runner) all(ctx context.Context, mutants []*mutant) (bool, error) {
	begun := time.Now()
	if err := r.baseline(ctx, mutants); err != nil {
		return false, err
	}
	r.print("%-10s %-96s %7s  %s\n", "part", "mutant", "seconds", "caught by")
	parallel(r.jobs, mutants, func(m *mutant) {
		if ctx.Err() == nil {
			r.one(ctx, m)
		}
	})
	r.print("mutants: %d passed, %d skipped, %d failed, in %.0f s\n", r.passed, r.excused, r.failed, time.Since(begun).Seconds())
	return r.failed == 0, ctx.Err()
}

// baseline runs each test command once on the unchanged sources, in which it has to pass.
func (r *runner) baseline(ctx context.Context, mutants []*mutant) error {
	var commands []testCommand
	seen := map[testCommand]bool{}
	for _, m := range mutants {
		for _, c := range m.tests {
			if !seen[c] {
				seen[c] = true
				commands = append(commands, c)
			}
		}
	}
	var mutex sync.Mutex
	var failed []error
	begun := time.Now()
	parallel(r.jobs, commands, func(c testCommand) {
		if ctx.Err() != nil {
			return
		}
		result, err := r.builder.test(ctx, r.builder.plain, c)
		switch {
		case err != nil:
		case result.failed != "":
			err = fmt.Errorf("%s fails at %s:\n%s", c, result.failed, result.output)
		case !result.ran:
			err = fmt.Errorf("%s runs no test, or skips all:\n%s", c, result.output)
		}
		if err != nil {
			mutex.Lock()
			failed = append(failed, fmt.Errorf("without a mutant: %w", err))
			mutex.Unlock()
		}
	})
	if err := errors.Join(append(failed, ctx.Err())...); err != nil {
		return err
	}
	r.print("without a mutant: all %d test commands pass, in %.0f s\n", len(commands), time.Since(begun).Seconds())
	return nil
}

// one tests a mutant, and prints its line.
func (r *runner) one(ctx context.Context, m *mutant) {
	begun := time.Now()
	caught, output, err := r.test(ctx, m)
	seconds := time.Since(begun).Seconds()
	if ctx.Err() != nil {
		return
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	switch {
	case err != nil:
		r.failed++
		fmt.Fprintf(r.out, "%-10s %-96s %7.0f  %v\nFAIL %s\n", m.part, m.name, seconds, err, m.id())
	case caught != "":
		r.passed++
		fmt.Fprintf(r.out, "%-10s %-96s %7.0f  %s\n", m.part, m.name, seconds, caught)
		if r.keep {
			fmt.Fprintln(r.out, output)
		}
	case m.survives != "":
		r.excused++
		fmt.Fprintf(r.out, "%-10s %-96s %7.0f  nothing: %s\nSKIP %s: %s\n", m.part, m.name, seconds, m.survives, m.id(), m.survives)
	default:
		r.failed++
		fmt.Fprintf(r.out, "%-10s %-96s %7.0f  NOTHING\nFAIL %s\n", m.part, m.name, seconds, m.id())
	}
}

// id names a mutant in one word, for test/suite.
func (m *mutant) id() string {
	return m.part + "/" + strings.ReplaceAll(strings.ReplaceAll(m.name, ":", ""), " ", "_")
}

// test runs the commands of a mutant until one notices it, and returns the test that did; "" if none has.
func (r *runner) test(ctx context.Context, m *mutant) (caught, output string, err error) {
	tree, err := r.builder.plant(m)
	if err != nil {
		return "", "", err
	}
	defer tree.remove()
	for _, c := range m.tests {
		result, err := r.builder.test(ctx, tree, c)
		if err != nil {
			return "", "", err
		}
		if refused.MatchString(result.output) {
			return "", "", fmt.Errorf("the kernel does not load the changed program, choose another change:\n%s", result.output)
		}
		if result.failed != "" {
			return result.failed, result.output, nil
		}
	}
	if len(tree.bpf) > 0 && !tree.planted {
		return "", "", errors.New("no program of the tests has the changed BPF object; were objects compiled again meanwhile?")
	}
	return "", "", nil
}

// refused matches the error of a program that the verifier does not accept.
var refused = regexp.MustCompile(`load program: |processed \d+ insns`)

func (r *runner) print(format string, args ...any) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	fmt.Fprintf(r.out, format, args...)
}

// parallel calls do for each item, a number of them at the same time.
func parallel[T any](jobs int, items []T, do func(T)) {
	queue := make(chan T)
	var workers sync.WaitGroup
	for range jobs {
		workers.Go(func() {
			for item := range queue {
				do(item)
			}
		})
	}
	for _, item := range items {
		queue <- item
	}
	close(queue)
	workers.Wait()
}
