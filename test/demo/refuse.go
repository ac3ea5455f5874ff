// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"beeline.io/beeline/internal/api"
)

// unused are addresses of the Services' range that no Service of the manifests has.
var unused = []netip.AddrPort{
	netip.MustParseAddrPort("10.96.0.41:80"),
	netip.MustParseAddrPort("[fd00:96::41]:80"),
}

// atOnce is less than TCP waits before it retransmits a SYN.
const atOnce = 5 * time.Second

func showRefusals(ctx context.Context, d *demo) error {
	empty, err := d.view(emptyService)
	if err != nil {
		return err
	}
	for _, address := range empty.addresses {
		if err := d.refused(ctx, "Service "+emptyService, address, syscall.ECONNREFUSED); err != nil {
			return err
		}
	}
	if err := d.claim(true, "a Service without endpoints refuses at once"); err != nil {
		return err
	}
	for _, address := range unused {
		if err := d.refused(ctx, "an unused address", address, syscall.EPERM); err != nil {
			return err
		}
	}
	if err := d.claim(true, "a connection to an unused address is refused at once, and not sent into the network"); err != nil {
		return err
	}
	return d.endRefusal()
}

// endRefusal removes the Service without endpoints, which status names until then: in a file it is a mistake.
func (d *demo) endRefusal() error {
	text, err := d.agents[0].CLI("status")
	if err := d.claim(err != nil && strings.Contains(text, "EndpointsMissing: Service "+emptyService), "status names the Service whose clients are refused, and exits with 3"); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(d.folder, "empty.yaml")); err != nil {
		return fmt.Errorf("the demo needs %s in a file of its own: %w", emptyService, err)
	}
	for _, a := range d.agents {
		if err := a.WaitFor("without "+emptyService+" all is well", func(s *api.Status) bool { return len(s.Conditions.Wrong()) == 0 }); err != nil {
			return err
		}
	}
	return nil
}

// refused connects once and expects that error, soon.
func (d *demo) refused(ctx context.Context, what string, address netip.AddrPort, want error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	d.refusals++
	begin := time.Now()
	conn, err := d.lab.Host("a1").Dial(ctx, "tcp", address.String())
	took := time.Since(begin)
	if err == nil {
		conn.Close()
		return fmt.Errorf("%s %s: the connection was accepted", what, address)
	}
	errno := syscall.Errno(0)
	errors.As(err, &errno)
	d.say("  %-22s %-18s  %q after %s", what, address, errno.Error(), took.Round(10*time.Microsecond))
	if !errors.Is(err, want) || took > atOnce {
		return fmt.Errorf("%s %s: %w after %s; want %q at once", what, address, err, took, want)
	}
	return nil
}
