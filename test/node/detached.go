// SPDX-License-Identifier: Apache-2.0

package node

import (
	"io"
	"os"
	"syscall"
)

// detach lets the prepared process outlive this program: it writes to a file, since a pipe would break, and no
// signal of this terminal reaches it.
func (a *Agent) detach() (log *os.File, err error) {
	log, err = os.OpenFile(a.Detached, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	a.last.file = a.Detached
	a.cmd.Stdout, a.cmd.Stderr = log, log
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return log, nil
}

// endOf is the end of a file, for messages.
func endOf(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if size, err := f.Seek(0, io.SeekEnd); err == nil {
		f.Seek(max(0, size-tailSize), io.SeekStart)
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
