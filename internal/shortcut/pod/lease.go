// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"math"
	"sync/atomic"
	"time"

	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/util/kernelclock"
)

// lease is how long the programs may use the shortcut without another search for filters. It ends the shortcut if the
// agent is dead, hangs, or cannot search: rules that appear meanwhile would have no effect.
type lease struct {
	until atomic.Uint32 // second of the kernel's clock; 0: there has been no search
}

// extendLease is called after a complete search, when its result is in the tables.
func (s *Shortcut) extendLease(searchBegan time.Time) error {
	until := kernelclock.CoarseSeconds() + uint32(max(s.config.Lease-time.Since(searchBegan), 0)/time.Second)
	if s.config.IgnoreFilters {
		until = math.MaxUint32
	}
	if s.lease.until.Load() == until {
		return nil
	}
	if err := s.datapath.Leases().Put(0, LeaseRow{Until: until}); err != nil {
		return err
	}
	s.lease.until.Store(until)
	return nil
}

// overdue returns the condition of a search that is late.
func (s *Shortcut) overdue() condition.List {
	until, now := s.lease.until.Load(), kernelclock.CoarseSeconds()
	if until == 0 || now < until {
		return nil
	}
	return condition.List{condition.PodShortcutUnsearched.New("the last complete search for packet filters is %v old, more than --pod-filter-age %v",
		s.config.Lease+time.Duration(now-until)*time.Second, s.config.Lease)}
}
