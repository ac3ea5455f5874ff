// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"sync"
	"time"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/offline"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/report/metrics"
	"beeline.io/beeline/internal/tables/reconcile"
)

// Ages of what a scrape shows. To determine the conditions costs more than all else in a scrape, and the more
// objects there are: a scrape shows those of the scrape before, unless that was long ago.
const (
	conditionsFresh = 15 * time.Second // they are not determined anew
	conditionsOld   = 2 * time.Minute  // the scrape waits for new ones
	conflictsFresh  = time.Minute      // PortConflicts need a walk of all frontends
	affinityFresh   = time.Minute      // its fill needs a walk of the table
)

// conditions are the agent's conditions as the metrics show them.
type conditions struct {
	agent *Agent

	determining sync.Mutex // held while they are determined
	conflicts   aged[[]api.PortConflict]
	unknown     string // why conflicts is not known
	clients     aged[uint32]

	mu   sync.Mutex
	last aged[condition.List]
	fill uint32 // of the affinity table
	err  error
}

// aged is a value and when it was determined.
type aged[T any] struct {
	value T
	at    time.Time
}

func (a *aged[T]) olderThan(d time.Duration) bool { return time.Since(a.at) >= d }

// affinity returns the last number of entries in the affinity table.
func (c *conditions) affinity() uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fill
}

// current returns conditions that are at most conditionsOld old.
func (c *conditions) current() (aged[condition.List], error) {
	c.mu.Lock()
	last := c.last
	c.mu.Unlock()
	switch {
	case last.olderThan(conditionsOld):
		c.determining.Lock()
		c.determine()
		c.determining.Unlock()
	case last.olderThan(conditionsFresh) && c.determining.TryLock():
		go func() {
			defer c.determining.Unlock()
			c.determine()
		}()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last, c.err
}

// determine determines the conditions. The fill of the conntrack tables is that of the last GC pass.
func (c *conditions) determine() {
	a := c.agent
	a.datapath.RestorePins() // an error is one of reading them, too
	s := offline.ReadStatus(a.config.BPFFS, a.version, &api.Tables{}, a.config.Components.ReadPins, false)
	err := c.readTables(s)
	a.completeStatus(s)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last, c.fill, c.err = aged[condition.List]{s.Conditions, time.Now()}, c.clients.value, err
}

// readTables adds what needs a walk of tables, if it is too old.
func (c *conditions) readTables(s *api.Status) error {
	a := c.agent
	if c.clients.olderThan(affinityFresh) {
		usage, err := a.syncer.Usage()
		if err != nil {
			return err
		}
		c.clients = aged[uint32]{affinityEntries(usage), time.Now()}
	}
	s.Tables = a.syncer.UsageWith(c.clients.value)
	if c.conflicts.olderThan(conflictsFresh) {
		tables, err := offline.ReadScope(context.Background(), a.datapath.Tables, offline.Scope{Outline: true})
		if err != nil {
			return err
		}
		c.conflicts.at, c.unknown = time.Now(), ""
		if c.conflicts.value, err = offline.PortConflicts(tables); err != nil {
			c.unknown = err.Error()
		}
	}
	s.PortConflicts, s.PortConflictsUnavailable = c.conflicts.value, c.unknown
	return nil
}

func affinityEntries(usage []reconcile.Usage) uint32 {
	for _, u := range usage {
		if u.Table == bpf.SockMapAffinity {
			return u.Used
		}
	}
	return 0
}

// metrics returns the number of conditions of each kind, and of each object if their number is bounded.
func (c *conditions) metrics() ([]api.Metric, error) {
	current, err := c.current()
	type key struct {
		code   condition.Code
		object string
	}
	counts := map[key]int{}
	for _, k := range condition.Kinds() {
		counts[key{k.Code, ""}] = 0
	}
	for _, held := range current.value {
		object := ""
		if condition.KindOf(held.Code).Bounded {
			object = held.Object
		}
		counts[key{held.Code, object}]++
	}
	b := metrics.NewBatch()
	b.Add("beeline_conditions_timestamp_seconds", metrics.Seconds(current.at))
	for of, n := range counts {
		severity := condition.KindOf(of.code).Severity
		b.Add("beeline_condition", float64(n), "code", string(of.code), "severity", string(severity), "object", of.object)
	}
	return b.Metrics, err
}
