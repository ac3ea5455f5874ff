// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
)

// A loadCase is a load, beside another program that is always busy or not.
type loadCase struct {
	connections int
	busy        bool
}

func (c loadCase) String() string {
	if c.busy {
		return "beside a busy program"
	}
	return "alone"
}

func loadCases(smoke bool) (all []loadCase) {
	if smoke {
		return []loadCase{{64, false}}
	}
	for _, busy := range []bool{false, true} {
		for _, connections := range []int{1, 64, 200} {
			all = append(all, loadCase{connections, busy})
		}
	}
	return all
}

// startBusyProgram starts a program that always has work, until stop ends it.
func startBusyProgram(ctx context.Context) (stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	program := exec.CommandContext(ctx, "sh", "-c", "while :; do :; done")
	if err := program.Start(); err != nil {
		cancel()
		return nil, err
	}
	return func() { cancel(); program.Wait() }, nil
}

// hostStackPrograms are beside the program: `make hoststack` builds them.
func hostStackPrograms(program string) (library, pingpong string, err error) {
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
