// SPDX-License-Identifier: Apache-2.0

package pinfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Directories in the bpffs directory that mark a drain, with the time in seconds since 1970 at which it ends at the
// latest. They outlive a drain that is killed.
const (
	drainMark = "drain_until_"
	// takenMark is the mark of a drain on whose tables an agent has started, until that agent has restored them.
	takenMark = "drained_until_"
)

// A Drain is a `beeline cleanup --drain`: it has withdrawn the Services from the tables, and no agent has restored
// them since.
type Drain struct {
	Until time.Time `json:"until"` // when it ends at the latest
	// Running means that the drain holds the bpffs directory.
	Running bool `json:"running"`
	// PID of the drain, 0 if it is not running, or in another PID namespace.
	PID int `json:"pid,omitempty"`
}

// MarkDrain records that a drain begins. The caller holds the lock of the directory.
func MarkDrain(path string, until time.Time) error {
	if err := UnmarkDrain(path); err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(path, drainMark+strconv.FormatInt(until.Unix(), 10)), 0o700); err != nil {
		return fmt.Errorf("record the drain: %w", err)
	}
	return nil
}

// TakeOverDrain records that the lock's holder is an agent, which continues after a drain that was ended half way.
func TakeOverDrain(path string) error {
	marks, err := filepath.Glob(filepath.Join(path, drainMark+"*"))
	for _, mark := range marks {
		until := strings.TrimPrefix(filepath.Base(mark), drainMark)
		err = errors.Join(err, os.Rename(mark, filepath.Join(path, takenMark+until)))
	}
	return err
}

// UnmarkDrain removes the record of a drain, if there is one.
func UnmarkDrain(path string) error {
	marks, err := drainMarks(path)
	for _, mark := range marks {
		err = errors.Join(err, os.Remove(mark))
	}
	return err
}

// DrainOf returns the drain of a bpffs directory; nil if there is none.
func DrainOf(path string) *Drain {
	held, pid := holder(path)
	marks, err := drainMarks(path)
	if err != nil || len(marks) == 0 {
		return nil
	}
	name := filepath.Base(marks[0])
	seconds, err := strconv.ParseInt(name[strings.LastIndexByte(name, '_')+1:], 10, 64)
	if err != nil {
		return nil
	}
	drain := &Drain{Until: time.Unix(seconds, 0)}
	if held && strings.HasPrefix(name, drainMark) {
		drain.Running, drain.PID = true, pid
	}
	return drain
}

func drainMarks(path string) ([]string, error) {
	running, err := filepath.Glob(filepath.Join(path, drainMark+"*"))
	taken, other := filepath.Glob(filepath.Join(path, takenMark+"*"))
	return slices.Concat(running, taken), errors.Join(err, other)
}
