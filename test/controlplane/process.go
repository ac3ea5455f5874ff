// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"beeline.io/beeline/test/lab"
)

// startTimeout bounds the start of each program; a slow machine needs much of it.
const startTimeout = 5 * time.Minute

// pollInterval is the time between polls.
const pollInterval = 20 * time.Millisecond

// Process is one program on a host. It ends with this one, for whatever reason, because the lab is temporary.
type Process struct {
	Name string
	Host *lab.Host
	Log  string // path of the file for its output

	argv []string
	env  []string // nil: this program's

	cmd  *lab.Cmd
	done chan struct{} // closed when it has ended
	err  error         // why, once done is closed
}

// start starts the program and does not wait until it serves.
func (p *Process) start() error {
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	p.cmd = p.Host.Command(context.Background(), p.argv...)
	p.cmd.Env = p.env
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.Dir = log, log, filepath.Dir(p.Log)
	if err := p.cmd.Start(); err != nil {
		p.cmd = nil
		return fmt.Errorf("starting %s: %w", p.Name, err)
	}
	p.done = make(chan struct{})
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return nil
}

// end sends the signal and waits until the program has ended, if it runs.
func (p *Process) end(signal syscall.Signal) error {
	if p.cmd == nil {
		return nil
	}
	if err := p.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stopping %s: %w", p.Name, err)
	}
	<-p.done
	p.cmd = nil
	return nil
}

// await polls until ok returns nil. It fails as soon as the program ends.
func (p *Process) await(ctx context.Context, what string, ok func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		err := ok(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s on %s ended (%v) before it was %s; it printed:\n%s", p.Name, p.Host.Name, p.err, what, p.LogTail())
		case <-ctx.Done():
			return fmt.Errorf("%s on %s is not %s: %w (last error: %w); it printed:\n%s", p.Name, p.Host.Name, what, ctx.Err(), err, p.LogTail())
		case <-time.After(pollInterval):
		}
	}
}

// LogTail is the end of the program's output.
func (p *Process) LogTail() string {
	const lines = 30
	text, err := os.ReadFile(p.Log)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
