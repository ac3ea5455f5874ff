// SPDX-License-Identifier: Apache-2.0

package sockgc

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/node/netns"
)

// EndAll ends every UDP socket that a hook has connected to a backend, in all network namespaces. The hooks are
// detached, and the socket storage is still pinned in the bpffs directory. Without it nothing would end these sockets
// when their backends go: neither a later agent nor another proxy knows of them, and their datagrams would be lost
// without an error. unseen says whose sockets it could not see; empty: it has seen all.
//
// Errors: os.ErrNotExist if no socket storage is pinned there.
func EndAll(bpffs string, by Method) (ended int, unseen string, err error) {
	method, finder, _, err := choose(by, bpf.HaveSockDestroy(), func(end bool) (*Iterators, error) { return openServiceSockets(bpffs, end) })
	if err != nil {
		return 0, "", err
	}
	c := newCollector(Config{Log: slog.New(slog.DiscardHandler)}, method, finder, "", nil)
	defer c.Close()
	for n := range 2 {
		if n > 0 {
			time.Sleep(followUp) // sockets whose connect() was in progress when the hooks were detached
		}
		s := &pass{collector: c, protocol: unix.IPPROTO_UDP}
		s.run(context.Background())
		ended += s.ended
		if err := errors.Join(s.errs...); err != nil {
			return ended, "", err
		}
		if s.unreadable > 0 {
			unseen = (&netns.UnreadableError{Processes: s.unreadable}).Error()
		}
	}
	if !netns.HostPID() {
		unseen = "this is not the host's PID namespace (hostPID), so those of pods are not seen"
	}
	return ended, unseen, nil
}
