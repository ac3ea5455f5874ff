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

// CallerConfig is what a caller does: connect(2) calls that are to fail for want
// of a route, so that nothing but the call itself happens.
type CallerConfig struct {
	Targets []netip.AddrPort `json:"targets"` // in turn
	Calls   int              `json:"calls"`
	CPU     int              `json:"cpu"`
}

// RunCaller runs a caller on a host. A call that does not fail with
// EHOSTUNREACH ends it with an error.
func RunCaller(ctx context.Context, host *lab.Host, config CallerConfig) error {
	_, err := run[CallerConfig, struct{}](ctx, host, partCaller, config)
	return err
}

func runCaller(config CallerConfig) error {
	if err := pin(os.Getpid(), config.CPU); err != nil {
		return err
	}
	targets := make([]*sockaddr, len(config.Targets))
	for i, t := range config.Targets {
		targets[i] = sockaddrOf(t)
	}
	for i := range config.Calls {
		to := targets[i%len(targets)]
		fd, errno := socket(to.family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC)
		if errno != 0 {
			return os.NewSyscallError("socket", errno)
		}
		if errno := connect(fd, to); errno != unix.EHOSTUNREACH {
			return fmt.Errorf("connect to %s: %q instead of %q", config.Targets[i%len(targets)], errno, unix.EHOSTUNREACH)
		}
		closeFD(fd)
	}
	return printJSON(struct{}{})
}
