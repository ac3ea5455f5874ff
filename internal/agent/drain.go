// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/pinfs"
	"beeline.io/beeline/internal/conntrack"
	"beeline.io/beeline/internal/offline"
	"beeline.io/beeline/internal/util/plural"
)

// drainPoll is the time between looks at the remaining flows; drainReport, between reports.
const (
	drainPoll   = time.Second
	drainReport = 10 * time.Second
)

// Drain leaves new connections and flows to another proxy of the node, and waits until those that the edge tracks have
// ended, or for the limit. It returns the remaining ones. The programs stay attached: they serve the flows of their
// conntrack tables, and pass whatever is for no Service. No agent may be running; one that starts serves again.
//
// Errors: *pinfs.LockedError while an agent is running; that of ctx.
func Drain(ctx context.Context, bpffs string, limit time.Duration, report func(string)) (left []conntrack.Flow, err error) {
	if !bpf.HasPins(bpffs) {
		return nil, nil
	}
	lock, err := pinfs.Lock(bpffs)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	tables, err := bpf.OpenTables(bpffs)
	if err != nil {
		return nil, err
	}
	names, err := tables.Services.All()
	if err != nil {
		return nil, err
	}
	flows, noFlows := conntrack.Open(bpffs)
	if noFlows != nil && !errors.Is(noFlows, os.ErrNotExist) { // without the edge there are none
		return nil, noFlows
	}
	timeouts, err := attachedTimeouts(bpffs)
	if err != nil {
		return nil, err
	}
	end := time.Now().Add(limit)
	if err := pinfs.MarkDrain(bpffs, end); err != nil {
		return nil, err
	}
	if err := tables.Withdraw(); err != nil || noFlows != nil {
		return nil, err
	}
	return awaitFlows(ctx, flows, timeouts, offline.PortNames(names), end, report)
}

// attachedTimeouts returns the timeouts of the agent that attached the programs; the defaults if none are attached.
func attachedTimeouts(bpffs string) (conntrack.Timeouts, error) {
	ticks, err := bpf.AttachedTimeouts(bpffs)
	if errors.Is(err, os.ErrNotExist) {
		return conntrack.DefaultTimeouts, nil
	}
	if err != nil {
		return conntrack.Timeouts{}, fmt.Errorf("the timeouts of flows: %w", err)
	}
	return conntrack.TimeoutsOf(ticks), nil
}

// awaitFlows waits until no flow is left that has not ended, or until the end of the drain.
func awaitFlows(ctx context.Context, flows *conntrack.Tables, timeouts conntrack.Timeouts, names conntrack.PortName, end time.Time, report func(string)) ([]conntrack.Flow, error) {
	next := time.Now()
	for {
		left, err := openFlows(flows, timeouts, names)
		if err != nil || len(left) == 0 || !time.Now().Before(end) {
			return left, err
		}
		if !time.Now().Before(next) {
			report(fmt.Sprintf("new flows pass to another proxy; waiting for %s, at most %v", plural.Of(len(left), "flow"), time.Until(end).Round(time.Second)))
			next = next.Add(drainReport)
		}
		select {
		case <-ctx.Done():
			return left, ctx.Err()
		case <-time.After(min(drainPoll, time.Until(end))):
		}
	}
}

// openFlows returns the flows that have not ended, and deletes those that have expired: no agent does so.
func openFlows(flows *conntrack.Tables, timeouts conntrack.Timeouts, names conntrack.PortName) (open []conntrack.Flow, err error) {
	if _, err := conntrack.CollectGarbage(flows, timeouts, bpf.Now(), nil); err != nil {
		return nil, err
	}
	all, err := conntrack.List(flows, names)
	for _, f := range all {
		if f.State != conntrack.StateNames[bpf.ConntrackClosed] {
			open = append(open, f)
		}
	}
	return open, err
}
