// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// Helpers are this same program started again under a name of their own, which selects the part. It is an
// argument and not in the environment, so that a helper's own children cannot inherit it.
const (
	helperSocket = "beeline-lab-socket"
	helperServer = "beeline-lab-server"
	helperTunnel = "beeline-lab-wireguard"
)

// errNoMain prevents a program from starting itself again and again.
var errNoMain = errors.New("lab.Main was not called: call it first of all in main or TestMain")

var mainCalled atomic.Bool

// Main turns the process into a lab's helper if it was started as one, and does not return then. Otherwise it
// returns at once. Programs that use Host.Socket, Host.Dial, Host.Listen or servers call it first.
func Main() {
	mainCalled.Store(true)
	var err error
	switch {
	case os.Args[0] == helperSocket:
		err = serveSockets(helperFD)
	case os.Args[0] == helperServer && len(os.Args) == 2:
		err = runServer(os.Args[1])
	case os.Args[0] == helperTunnel && len(os.Args) == 2:
		err = runTunnel(os.Args[1])
	default:
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, os.Args[0]+":", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// helperFD is the descriptor for messages to a helper's parent.
const helperFD = 3

// helperCommand prepares this program as a helper of the host. A bound helper
// ends with this process, whatever ends it.
func (h *Host) helperCommand(bound bool, argv ...string) (*Cmd, error) {
	if !mainCalled.Load() {
		return nil, errNoMain
	}
	// Not the file's name: a test binary may have been removed or replaced.
	cmd := h.Command(context.Background(), "/proc/self/exe")
	cmd.Args = argv
	cmd.Dir = "/" // so that no directory of the caller stays in use
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if bound {
		cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
	} else {
		cmd.SysProcAttr.Setsid = true
	}
	return cmd, nil
}

// setProcessName sets what ps shows instead of "exe".
func setProcessName(name string) {
	os.WriteFile("/proc/self/comm", []byte(name), 0) // for display only
}
