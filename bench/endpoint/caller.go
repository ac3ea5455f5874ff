// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"context"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/lab"
)

// CallerConfig configures a caller: connect(2) or sendto(2) calls that must fail for lack of a route, so that
// nothing but the call itself happens.
type CallerConfig struct {
	Datagrams bool             `json:"datagrams"` // sendto(2) on UDP sockets
	OneSocket bool             `json:"oneSocket"` // for all calls, instead of one each
	First     []netip.AddrPort `json:"first"`     // the targets of the first calls
	Targets   []netip.AddrPort `json:"targets"`   // of the others, in turn
	Calls     int              `json:"calls"`
	CPU       int              `json:"cpu"`
}

// RunCaller runs a caller on a host. A call that does not fail with EHOSTUNREACH ends it with an error.
func RunCaller(ctx context.Context, host *lab.Host, config CallerConfig) error {
	_, err := run[CallerConfig, struct{}](ctx, host, partCaller, config)
	return err
}

func runCaller(config CallerConfig) error {
	first, targets := sockaddrsOf(config.First), sockaddrsOf(config.Targets)
	kind, name, call := unix.SOCK_STREAM, "connect", connect
	if config.Datagrams {
		var b [1]byte
		kind, name = unix.SOCK_DGRAM, "sendto"
		call = func(fd int, to *sockaddr) unix.Errno { return sendTo(fd, b[:], to) }
	}
	fd := -1
	for i := range config.Calls {
		to := targets[i%len(targets)]
		if i < len(first) {
			to = first[i]
		}
		if fd < 0 {
			var errno unix.Errno
			if fd, errno = socket(to.family, kind|unix.SOCK_CLOEXEC); errno != 0 {
				return os.NewSyscallError("socket", errno)
			}
		}
		if errno := call(fd, to); errno != unix.EHOSTUNREACH {
			return fmt.Errorf("%s to %s: %q instead of %q", name, to.addrPort(), errno, unix.EHOSTUNREACH)
		}
		if !config.OneSocket {
			closeFD(fd)
			fd = -1
		}
	}
	return printJSON(struct{}{})
}

func sockaddrsOf(addresses []netip.AddrPort) []*sockaddr {
	all := make([]*sockaddr, len(addresses))
	for i, a := range addresses {
		all[i] = sockaddrOf(a)
	}
	return all
}
