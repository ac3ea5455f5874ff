// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	kernel "github.com/ti-mo/conntrack"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/util/wakeup"
)

// kernelUDPPause is the least time between two searches of the kernel's conntrack.
const kernelUDPPause = time.Second

// deleteStaleKernelUDP deletes UDP flows that netfilter translates to a backend that no longer serves (R29), until ctx
// ends. The edge leaves such flows to the stack: they began when another proxy served the port, whose rules are gone.
func (r *running) deleteStaleKernelUDP(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.udpRemoved:
		}
		removed := r.env.Syncer.TakeRemovedUDP()
		n, err := deleteKernelUDP(func(to, backend netip.AddrPort) bool {
			if !r.env.Syncer.Has(service.UDP, to) {
				return removed[to]
			}
			return !r.env.Serves(bpf.Connection{Protocol: unix.IPPROTO_UDP, Service: to, Backend: backend})
		})
		if err != nil {
			r.env.Log.Warn("UDP flows that netfilter translates may stay with backends that no longer serve", "error", err)
		}
		if n > 0 {
			r.env.Log.Info("deleted UDP flows of the kernel's conntrack: netfilter translated them to backends that no longer serve", "flows", n)
		}
		if !wakeup.Sleep(ctx, kernelUDPPause) {
			return nil
		}
	}
}

// deleteKernelUDP deletes the stale ones of the UDP flows whose destination netfilter translates. It is no error if the
// kernel has no conntrack.
func deleteKernelUDP(stale func(to, backend netip.AddrPort) bool) (deleted int, _ error) {
	c, err := kernel.Dial(nil)
	if err != nil {
		return 0, ignoreNoConntrack(err)
	}
	defer c.Close()
	flows, err := c.DumpFilter(kernel.NewFilter().Status(kernel.StatusDstNAT), nil)
	if err != nil {
		return 0, ignoreNoConntrack(err)
	}
	var errs []error
	for _, f := range flows {
		to, backend := f.TupleOrig, f.TupleReply
		if to.Proto.Protocol != unix.IPPROTO_UDP || f.Status&kernel.StatusDstNAT == 0 ||
			!stale(netip.AddrPortFrom(to.IP.DestinationAddress, to.Proto.DestinationPort), netip.AddrPortFrom(backend.IP.SourceAddress, backend.Proto.SourcePort)) {
			continue
		}
		if err := c.Delete(f); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("delete the conntrack entry of %v: %w", to, err))
			continue
		}
		deleted++
	}
	return deleted, errors.Join(errs...)
}

// removeOwnEntries deletes the entries that programs have added to the kernel's conntrack.
func removeOwnEntries() error {
	c, err := kernel.Dial(nil)
	if err != nil {
		return ignoreNoConntrack(err)
	}
	defer c.Close()
	if err := c.FlushFilter(kernel.NewFilter().Mark(bpf.OwnEntryMark)); err != nil {
		return ignoreNoConntrack(err)
	}
	return nil
}

// ignoreNoConntrack returns an error unless it says that the kernel has no ctnetlink.
func ignoreNoConntrack(err error) error {
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	return fmt.Errorf("read the kernel's conntrack: %w", err)
}
