// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"beeline.io/beeline/internal/node/netdev"
	"beeline.io/beeline/internal/report/condition"
)

// A search is one for packet filters that has ended.
type search struct {
	around *surroundings // where filters were searched
	found  []filter
	err    error
}

// followFilters searches filters when they, or the devices of pods, have changed, and every auditInterval.
func (s *Shortcut) followFilters(ctx context.Context) {
	audit := time.NewTicker(auditInterval)
	defer audit.Stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	ended := make(chan struct{})
	running := false
	defer func() {
		if running {
			<-ended
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ended:
			running = false
		case <-audit.C:
			s.config.Network.Forget()
			s.podsChanged()
		case <-s.due:
		case <-timer.C:
		}
		now := time.Now()
		if s.update(now) {
			err := s.apply()
			s.mu.Lock()
			s.record(err)
			s.mu.Unlock()
		}
		start, next := s.decide(now, running)
		if start {
			running = true
			go func() {
				s.searchFilters()
				ended <- struct{}{}
			}()
		}
		if !next.IsZero() {
			timer.Reset(max(time.Until(next), 0))
		}
	}
}

// update withholds pods because a search is late, or ends that, and reports whether it has done either.
func (s *Shortcut) update(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.schedule.update(now) {
		return false
	}
	if s.schedule.held && !s.config.IgnoreFilters {
		condition.PodShortcutUnsearched.Log(s.config.Log, "packet filters change faster than they can be searched: packets of all pods take the stack")
	}
	return true
}

// decide reports whether a search is to start, and when to decide again; zero: after the next change.
func (s *Shortcut) decide(now time.Time, running bool) (start bool, next time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	search, update := s.schedule.next(now)
	if start = !running && s.around != nil && !search.IsZero() && !search.After(now); start {
		return true, update
	}
	if running || s.around == nil {
		search = time.Time{}
	}
	return false, earliest(search, update)
}

// watchRules waits for changes of nftables.
func (s *Shortcut) watchRules(ctx context.Context) error {
	if err := s.filters.follow(); err != nil {
		return err
	}
	for {
		s.filtersChanged() // those before the subscription, too
		if err := s.filters.wait(ctx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("watch the rules of nftables: %w", err)
		}
	}
}

func (s *Shortcut) filtersChanged() {
	s.mu.Lock()
	s.schedule.filtersChanged(time.Now())
	s.mu.Unlock()
	s.due.Send()
}

func (s *Shortcut) podsChanged() {
	s.mu.Lock()
	s.schedule.podsChanged(time.Now())
	s.mu.Unlock()
	s.due.Send()
}

// searchFilters searches filters once, and writes what follows from it.
func (s *Shortcut) searchFilters() {
	s.searching.Lock()
	defer s.searching.Unlock()
	s.mu.Lock()
	around := s.around
	if around == nil {
		s.mu.Unlock()
		return
	}
	began := time.Now()
	s.schedule.begin(began)
	s.mu.Unlock()

	found, err := s.filters.find(*around)
	if err != nil { // there may be any
		found = []filter{{what: err.Error()}}
	}

	s.mu.Lock()
	s.schedule.end(time.Now())
	s.schedule.update(time.Now())
	s.searched = &search{around, found, err}
	s.mu.Unlock()
	failed := s.apply()
	if failed == nil && err == nil {
		failed = s.extendLease(began)
	}
	if failed != nil { // a device may have gone
		s.Reconcile()
	}
}

// isOutdated reports whether filters have to be searched at other places than before.
func (s *search) isOutdated(now *surroundings) bool {
	if s == nil || !slices.Equal(s.around.networks, now.networks) || len(s.around.at) != len(now.at) || len(s.around.uplinks) != len(now.uplinks) {
		return true
	}
	for addr := range now.at {
		if !s.hasPod(now, addr) {
			return true
		}
	}
	return slices.ContainsFunc(now.uplinks, func(l netdev.Device) bool { return !s.hasUplink(now, l) })
}

// hasPod reports whether the search has found the filters of a pod.
func (s *search) hasPod(now *surroundings, addr netip.Addr) bool {
	before, ok := s.around.at[addr]
	device := now.at[addr].device
	return ok && before.device == device && sameDevice(s.around.network, now.network, device)
}

// hasUplink reports whether the search has found the filters at a device that leads to other nodes.
func (s *search) hasUplink(now *surroundings, l netdev.Device) bool {
	return s.around.isUplink(l.Index) && sameDevice(s.around.network, now.network, l.Index)
}

// sameDevice reports whether filters see a device of two readings of the network as the same.
func sameDevice(a, b *network, index int) bool {
	type seen struct {
		name, master, masterKind string
		masterIndex              int
		netkit                   netdev.Netkit
	}
	of := func(n *network) seen {
		l := n.device(index)
		master := n.device(l.Master)
		return seen{l.Name, master.Name, master.Kind, l.Master, l.Netkit}
	}
	return of(a) == of(b)
}

// conditions returns why filters are not known.
func (s *search) conditions() condition.List {
	if s == nil || s.err == nil {
		return nil
	}
	return condition.List{condition.PodShortcutFailed.New("%v", s.err)}
}
