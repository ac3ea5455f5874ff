// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"beeline.io/beeline/internal/conntrack"
	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/inspect"
	"beeline.io/beeline/internal/pinfs"
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
	if !datapath.HasPins(bpffs) {
		return nil, nil
	}
	lock, err := pinfs.Lock(bpffs)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	tables, err := datapath.OpenTables(bpffs)
	if err != nil {
		return nil, err
	}
	names, err := tables.Services.All()
	if err != nil {
		return nil, err
	}
	flows, err := conntrack.Open(bpffs)
	if errors.Is(err, os.ErrNotExist) { // no edge, so no flows
		return nil, tables.Withdraw()
	}
	if err != nil {
		return nil, err
	}
	if err := tables.Withdraw(); err != nil {
		return nil, err
	}
	return awaitFlows(ctx, flows, inspect.PortNames(names), limit, report)
}

// awaitFlows waits until no flow is left that has not ended, or for the limit.
func awaitFlows(ctx context.Context, flows *conntrack.Tables, names conntrack.PortName, limit time.Duration, report func(string)) ([]conntrack.Flow, error) {
	end, next := time.Now().Add(limit), time.Now()
	for {
		left, err := openFlows(flows, names)
		if err != nil || len(left) == 0 || !time.Now().Before(end) {
			return left, err
		}
		if !time.Now().Before(next) {
			report(fmt.Sprintf("new flows pass to another proxy; waiting for %d flows, at most %v", len(left), time.Until(end).Round(time.Second)))
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
func openFlows(flows *conntrack.Tables, names conntrack.PortName) (open []conntrack.Flow, err error) {
	if _, err := conntrack.CollectGarbage(flows, conntrack.DefaultTimeouts, datapath.Now(), nil); err != nil {
		return nil, err
	}
	all, err := conntrack.List(flows, names)
	for _, f := range all {
		if f.State != conntrack.StateNames[datapath.ConntrackClosed] {
			open = append(open, f)
		}
	}
	return open, err
}
