// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Default ports of the servers.
const (
	PortTCP  = 8080
	PortHTTP = 8081
	PortUDP  = 8080
)

// readyTimeout bounds the start of a server.
const readyTimeout = 2 * time.Minute

// StartServers starts a server with default options in every pod that has none.
func (l *Lab) StartServers() error {
	pods := l.Pods()
	errs := make([]error, len(pods))
	var starting sync.WaitGroup
	for i, pod := range pods {
		starting.Go(func() {
			if !pod.ServerRunning() {
				errs[i] = pod.StartServer(ServerOptions{})
			}
		})
	}
	starting.Wait()
	return errors.Join(errs...)
}

// StartServer starts a server on the host, in both families, and returns when it serves. In a temporary lab it
// ends with this process; otherwise it runs until it is stopped or the lab is taken down.
func (h *Host) StartServer(options ServerOptions) error {
	if h.ServerRunning() {
		return fmt.Errorf("host %s: its server runs already: stop it first", h.Name)
	}
	config := serverConfig{ServerOptions: options, Pod: h.Name}
	config.complete()
	argument, err := json.Marshal(config)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(h.Dir, "server.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	ready, theirs, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	defer theirs.Close()
	cmd, err := h.helperCommand(h.lab.Temporary, helperServer, string(argument))
	if err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, []*os.File{theirs} // helperFD
	if err := cmd.Start(); err != nil {
		return err
	}
	go cmd.Wait() // StopServer watches the process by a descriptor of its own
	theirs.Close()
	if err := awaitReady(ready); err != nil {
		cmd.Process.Kill()
		return fmt.Errorf("host %s: its server does not start: %w", h.Name, err)
	}
	record, err := processOf(cmd.Process.Pid)
	if err == nil {
		err = writeJSON(h.serverRecord(), record)
	}
	if err != nil {
		cmd.Process.Kill()
		return fmt.Errorf("host %s: recording its server: %w", h.Name, err)
	}
	return nil
}

func (o *ServerOptions) complete() {
	if o.TCP == 0 {
		o.TCP = PortTCP
	}
	if o.HTTP == 0 {
		o.HTTP = PortHTTP
	}
	if o.UDP == 0 {
		o.UDP = PortUDP
	}
}

func awaitReady(ready *os.File) error {
	if err := ready.SetReadDeadline(time.Now().Add(readyTimeout)); err != nil {
		return err
	}
	line, err := bufio.NewReader(ready).ReadString('\n')
	switch {
	case errors.Is(err, io.EOF):
		return errors.New("it ended at once; server.log in the host's directory may say why")
	case err != nil:
		return err
	case line != "\n":
		return errors.New(strings.TrimSpace(line))
	}
	return nil
}

// serverRecord is the file with the server's process.
func (h *Host) serverRecord() string { return filepath.Join(h.Dir, "server.json") }

// ServerRunning reports whether a server runs on the host, whoever started it.
func (h *Host) ServerRunning() bool {
	fd, err := h.openServer()
	if err != nil {
		return false
	}
	unix.Close(fd)
	return true
}

// errNoServer means that no server runs on a host.
var errNoServer = errors.New("no server runs")

// openServer returns a pidfd of the host's server. It does not mistake a process that reuses its pid for it.
func (h *Host) openServer() (int, error) {
	data, err := os.ReadFile(h.serverRecord())
	if errors.Is(err, fs.ErrNotExist) {
		return -1, errNoServer
	}
	if err != nil {
		return -1, err
	}
	var p process
	if err := json.Unmarshal(data, &p); err != nil {
		return -1, fmt.Errorf("%s is damaged: %w", h.serverRecord(), err)
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return -1, errNoServer
	}
	if err != nil {
		return -1, os.NewSyscallError("pidfd_open", err)
	}
	// Checked after the descriptor is open, so that the answer is about the descriptor's process.
	pids, err := cgroupPIDs(h.Cgroup)
	if err != nil || !p.alive() || !slices.Contains(pids, p.PID) {
		unix.Close(fd)
		return -1, errors.Join(errNoServer, err)
	}
	return fd, nil
}

// StopServer stops the host's server gracefully and returns when it has ended: it closes its listeners at once,
// and keeps established connections for the Drain time of its options. It does nothing without a server.
func (h *Host) StopServer() error { return h.endServer(unix.SIGTERM) }

// KillServer stops the host's server at once, as a crash would. It does nothing without a server.
func (h *Host) KillServer() error { return h.endServer(unix.SIGKILL) }

func (h *Host) endServer(signal unix.Signal) error {
	fd, err := h.openServer()
	if errors.Is(err, errNoServer) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("host %s: %w", h.Name, err)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, signal, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("host %s: stopping its server: %w", h.Name, os.NewSyscallError("pidfd_send_signal", err))
	}
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
