// SPDX-License-Identifier: Apache-2.0

// Package endpoint is the two ends of a measured connection: a client and a server, each a process of its own
// in a pod, on one thread that is pinned to one CPU, with a loop of bare system calls. Their own cost is the
// same on every path, and small in comparison.
//
// A program that uses it calls [Main] first.
package endpoint

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/lab"
)

// The parts of this program, by the name with which it is started again.
const (
	prefix       = "beeline-bench-"
	partServer   = prefix + "server"
	partClient   = prefix + "client"
	partCaller   = prefix + "caller"
	partReceiver = prefix + "receiver"

	partLoad       = prefix + "load"
	partLoadServer = prefix + "load-server"
	partIdle       = prefix + "idle"
	partFlood      = prefix + "flood"
)

var mainCalled atomic.Bool

// Main turns the process into an endpoint if it was started as one, and does not return then.
func Main() {
	mainCalled.Store(true)
	if !strings.HasPrefix(os.Args[0], prefix) {
		return
	}
	err := fmt.Errorf("unknown part %q", os.Args[0])
	if play, known := parts[os.Args[0]]; known {
		err = play()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, os.Args[0]+":", err)
		os.Exit(1)
	}
	os.Exit(0)
}

var parts = map[string]func() error{
	partServer: player(runServer), partClient: player(runClient), partCaller: player(runCaller), partReceiver: player(runReceiver),
	partLoad: player(runLoad), partLoadServer: player(runLoadServer), partIdle: player(runIdle), partFlood: player(runFlood),
}

// player reads the part's configuration, a line of JSON on standard input, and runs the part on the CPU that it names.
func player[C any](run func(C) error) func() error {
	return func() error {
		runtime.LockOSThread()
		os.WriteFile("/proc/self/comm", []byte(os.Args[0]), 0) // for display only
		var text json.RawMessage
		var config C
		var place struct{ CPU int }
		err := json.NewDecoder(os.Stdin).Decode(&text)
		if err = errors.Join(err, json.Unmarshal(text, &config), json.Unmarshal(text, &place)); err != nil {
			return fmt.Errorf("read the configuration: %w", err)
		}
		if err := pin(os.Getpid(), place.CPU); err != nil {
			return err
		}
		return run(config)
	}
}

// command prepares this program as an endpoint on a host.
func command(ctx context.Context, host *lab.Host, part string) (*lab.Cmd, error) {
	if !mainCalled.Load() {
		return nil, errors.New("endpoint.Main was not called: call it first in main or TestMain")
	}
	cmd := host.Command(ctx, "/proc/self/exe")
	cmd.Args = []string{part}
	cmd.Dir = "/"
	// One thread works without interruptions: no garbage collector, no signals that switch goroutines, no
	// other processor to wake up.
	cmd.Env = []string{"GOGC=off", "GODEBUG=asyncpreemptoff=1", "GOMAXPROCS=1"}
	return cmd, nil
}

// run runs a part to its end and reads the JSON that it prints.
func run[C, R any](ctx context.Context, host *lab.Host, part string, config C) (R, error) {
	var result R
	text, err := json.Marshal(config)
	if err != nil {
		return result, err
	}
	cmd, err := command(ctx, host, part)
	if err != nil {
		return result, err
	}
	var out, complaints bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(text), &out, &complaints
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return result, ctx.Err()
		}
		return result, fmt.Errorf("%s in %s: %w: %s", part, host.Name, err, strings.TrimSpace(complaints.String()))
	}
	return result, json.Unmarshal(out.Bytes(), &result)
}

func printJSON(value any) error { return json.NewEncoder(os.Stdout).Encode(value) }

// pin pins all threads of a process to a CPU; later ones inherit it.
func pin(pid, cpu int) error {
	var set unix.CPUSet
	set.Set(cpu)
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return err
	}
	for _, task := range tasks {
		tid, err := strconv.Atoi(task.Name())
		if err != nil {
			return err
		}
		if err := unix.SchedSetaffinity(tid, &set); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("pin to CPU %d: %w", cpu, err)
		}
	}
	return nil
}
