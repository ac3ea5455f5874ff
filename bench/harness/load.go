// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
)

// A LoadCase is a load, beside another program that is always busy or not.
type LoadCase struct {
	Connections int
	Busy        bool
}

func (c LoadCase) String() string {
	if c.Busy {
		return "beside a busy program"
	}
	return "alone"
}

// LoadCases are all loads, or one for a smoke test.
func LoadCases(smoke bool) (all []LoadCase) {
	if smoke {
		return []LoadCase{{64, false}}
	}
	for _, busy := range []bool{false, true} {
		for _, connections := range []int{1, 64, 200} {
			all = append(all, LoadCase{connections, busy})
		}
	}
	return all
}

// StartBusyProgram starts a program that always has work, until stop ends it.
func StartBusyProgram(ctx context.Context) (stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	program := exec.CommandContext(ctx, "sh", "-c", "while :; do :; done")
	if err := program.Start(); err != nil {
		cancel()
		return nil, err
	}
	return func() { cancel(); program.Wait() }, nil
}

// HostStackPrograms are beside the program: `make hoststack` builds them.
func HostStackPrograms(program string) (library, pingpong string, err error) {
	folder, err := filepath.Abs(filepath.Dir(program))
	if err != nil {
		return "", "", err
	}
	library, pingpong = filepath.Join(folder, "libbeeline_hoststack.so"), filepath.Join(folder, "beeline-pingpong")
	for _, path := range []string{library, pingpong} {
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			return "", "", fmt.Errorf("%s is missing: `make hoststack` builds it", path)
		}
	}
	return library, pingpong, nil
}
