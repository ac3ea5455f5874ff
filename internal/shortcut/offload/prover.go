// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"context"
	"fmt"
	"log/slog"
	"net"

	"beeline.io/beeline/internal/node/flow"
	"beeline.io/beeline/internal/node/netns"
)

// prover is the flow cache as the self-test uses it (selftest.Provider): the same programs with tables of their own.
type prover struct {
	wait func() error // bpf.Tables.WaitForReaders
	log  *slog.Logger

	copy  *programCopy
	flows *FlowCache
	end   func()
}

// Attach implements selftest.Provider.
func (p *prover) Attach(router *netns.Namespace, devices []string, threshold int) (err error) {
	if p.copy, err = newProgramCopy(); err != nil {
		return err
	}
	err = router.Do(func() error {
		for _, name := range devices {
			device, err := net.InterfaceByName(name)
			if err != nil {
				return fmt.Errorf("device %s: %w", name, err)
			}
			if err := p.copy.Attach(device.Index); err != nil {
				return err
			}
		}
		p.flows, err = NewFlowCache(p.copy.Tables, p.wait, FlowCacheConfig{
			Threshold: uint32(threshold), Refuses: func(flow.Flow) string { return "" }, Log: p.log,
		})
		return err
	})
	if err != nil {
		p.copy.Close()
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- router.Do(func() error { return p.flows.Run(ctx) }) }()
	p.end = func() {
		cancel()
		<-ended
		p.flows.Close()
	}
	return nil
}

// Detach implements selftest.Provider.
func (p *prover) Detach() error {
	p.end()
	p.copy.Close()
	return nil
}
