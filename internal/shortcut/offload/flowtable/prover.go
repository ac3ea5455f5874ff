// SPDX-License-Identifier: Apache-2.0

package flowtable

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"beeline.io/beeline/internal/node/netns"
)

// A Prover is the flowtable as the self-test uses it (internal/shortcut/offload/selftest.Provider).
type Prover struct {
	// Hardware: devices whose driver refuses fail.
	Hardware bool
	Log      *slog.Logger

	table *Flowtable
	end   func()
}

// Attach implements selftest.Provider.
func (p *Prover) Attach(router *netns.Namespace, devices []string, threshold int) error {
	p.table = New(router, p.Log)
	r, err := p.table.Apply(Config{Devices: devices, Threshold: threshold, Hardware: p.Hardware})
	if err != nil {
		return err
	}
	for device, why := range r.RefusedDevices {
		return p.refuse(device, why)
	}
	for device, why := range r.RefusedHardwareDevices {
		return p.refuse(device, why)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.table.Run(ctx) }()
	p.end = func() { cancel(); <-ended }
	return nil
}

func (p *Prover) refuse(device, why string) error {
	return errors.Join(fmt.Errorf("device %s is not in the flowtable: %s", device, why), p.table.Close())
}

// Detach implements selftest.Provider.
func (p *Prover) Detach() error {
	p.end()
	return p.table.Close()
}
