// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// result is the result of a step.
type result struct {
	step
	tally
	err     error // of the command
	seconds float64
	cpu     time.Duration // of the command and all processes that it has waited for
	lines   int           // printed by the step
	last    string        // of these, cut to a terminal's width
	held    strings.Builder
}

var errNoTest = errors.New("no test ran")

func newResult(s step) *result { return &result{step: s, tally: newTally()} }

// done is how many tests passed; a quiet command is one.
func (r *result) done() int {
	if r.kind == kindQuiet && r.err == nil {
		return 1
	}
	return r.passed()
}

// ok reports whether nothing of the step failed.
func (r *result) ok() bool { return r.err == nil && len(r.failed()) == 0 }

// run runs the command, until its end or until the suite is interrupted.
func (r *result) run(interrupted context.Context, c *console, log io.Writer) {
	begun := time.Now()
	c.begin(r, r.progress)
	defer func() { r.seconds = time.Since(begun).Seconds() }()
	read, write, err := os.Pipe()
	if err != nil {
		r.err = err
		c.end(r)
		return
	}
	defer read.Close()
	cmd := exec.Command("/bin/sh", "-c", r.command)
	cmd.Stdout, cmd.Stderr = write, write
	if r.kind == kindGo {
		cmd.Stderr = os.Stderr // go's own messages: downloads, and why it cannot start
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that a signal reaches all of it
	err = cmd.Start()
	write.Close()
	if err != nil {
		r.err = err
		c.end(r)
		return
	}
	watched := context.AfterFunc(interrupted, func() { syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) })
	readErr := r.read(read, c, log)
	r.err = errors.Join(cmd.Wait(), readErr)
	r.cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	watched()
	if r.err == nil && r.kind == kindGo && len(r.outcome) == 0 {
		r.err = errNoTest
	}
	c.end(r)
	r.finish(c)
}

// read processes the command's output until its end.
func (r *result) read(from io.Reader, c *console, log io.Writer) error {
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			var failed error
			c.locked(func() { // so that steps side by side write whole lines to the log
				_, failed = io.WriteString(log, line)
				r.line(strings.TrimSuffix(line, "\n"), c)
			})
			if failed != nil {
				return fmt.Errorf("writing the log: %w", failed)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading the output of %s: %w", r.name, err)
		}
	}
}

// line takes one line of the command; the console is locked.
func (r *result) line(line string, c *console) {
	r.lines++
	switch r.kind {
	case kindGo:
		if e, ok := parseEvent(line); ok {
			r.event(e, c)
		} else {
			c.print(line)
		}
		return
	case kindRun:
		r.text(line)
		c.print(line)
	case kindQuiet:
		r.held.WriteString(line + "\n")
	}
	r.last = cut(line)
}

// finish prints held-back output that matters after all.
func (r *result) finish(c *console) {
	c.locked(func() {
		r.unfinished(c)
		if r.err != nil && r.kind == kindQuiet {
			c.print(strings.TrimSuffix(r.held.String(), "\n"))
		}
		if r.err != nil && len(r.failed()) == 0 {
			c.print(fmt.Sprintf("%s: %v", r.name, r.err))
		}
	})
}

// progress describes the state of the step; the console is locked.
func (r *result) progress() string {
	if r.kind == kindGo {
		return r.name + ": " + r.tally.progress(time.Now())
	}
	return fmt.Sprintf("%s: %d lines so far, the last: %s", r.name, r.lines, r.last)
}

func cut(line string) string {
	const width = 100
	if runes := []rune(line); len(runes) > width {
		return string(runes[:width]) + "..."
	}
	return line
}
