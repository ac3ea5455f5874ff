// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"beeline.io/beeline/test/lab"
)

// process is one program of the cluster on a host of the lab. It ends with the
// test, whatever ends that, for the lab is a temporary one.
type process struct {
	name string
	host *lab.Host
	argv []string
	log  string // path of the file that receives what it prints

	cmd  *lab.Cmd
	done chan struct{} // closed when it has ended
	err  error         // why, once done is closed
}

// start starts the program and does not wait until it serves.
func (p *process) start() error {
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	p.cmd = p.host.Command(context.Background(), p.argv...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.Dir = filepath.Dir(p.log)
	if err := p.cmd.Start(); err != nil {
		p.cmd = nil
		return fmt.Errorf("starting %s: %w", p.name, err)
	}
	p.done = make(chan struct{})
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return nil
}

// ended says whether the program ran and ended.
func (p *process) ended() bool {
	if p.cmd == nil {
		return false
	}
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// end sends the signal and waits for the program's end. None running is fine.
func (p *process) end(signal syscall.Signal) error {
	if p.cmd == nil {
		return nil
	}
	if err := p.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stopping %s: %w", p.name, err)
	}
	<-p.done
	p.cmd = nil
	return nil
}

// logTail is the end of what the program printed.
func (p *process) logTail() string {
	const lines = 30
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
