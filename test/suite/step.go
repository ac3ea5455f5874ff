// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// result is what became of a step.
type result struct {
	step
	tally
	err     error // of the command
	seconds float64
	lines   int    // that a step has printed
	last    string // of these, cut to a terminal's width
	held    strings.Builder
}

func newResult(s step) *result { return &result{step: s, tally: newTally()} }

// done is how many tests passed; a quiet command is one.
func (r *result) done() int {
	if r.kind == kindQuiet && r.err == nil {
		return 1
	}
	return r.passed()
}

// ok says whether nothing of the step failed.
func (r *result) ok() bool { return r.err == nil && len(r.failed()) == 0 }

// run runs the command. It returns false if a signal ended it.
func (r *result) run(c *console, log io.Writer, signals <-chan os.Signal) (ended bool) {
	begun := time.Now()
	c.begin(r.progress)
	defer func() { r.seconds = time.Since(begun).Seconds() }()
	read, write, err := os.Pipe()
	if err != nil {
		r.err = err
		return true
	}
	defer read.Close()
	cmd := exec.Command("/bin/sh", "-c", r.command)
	cmd.Stdout, cmd.Stderr = write, write
	if r.kind == kindGo {
		cmd.Stderr = os.Stderr // what go itself has to say: downloads, and why it cannot begin
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that a signal reaches all of it
	if err := cmd.Start(); err != nil {
		write.Close()
		r.err = err
		return true
	}
	write.Close()
	over := make(chan struct{})
	interrupted := make(chan bool, 1)
	go func() {
		select {
		case <-signals:
			syscall.Kill(-cmd.Process.Pid, syscall.SIGINT)
			interrupted <- true
		case <-over:
			interrupted <- false
		}
	}()
	readErr := r.read(io.TeeReader(read, log), c)
	r.err = errors.Join(cmd.Wait(), readErr)
	close(over)
	r.finish(c)
	return !<-interrupted
}

// read follows what the command prints until its end.
func (r *result) read(from io.Reader, c *console) error {
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			c.locked(func() { r.line(strings.TrimSuffix(line, "\n"), c) })
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading what %s prints: %w", r.name, err)
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

// finish prints what was kept back and turns out to matter.
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

// progress is what the step is at; the console is locked.
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
