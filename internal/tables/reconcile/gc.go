// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"errors"
	"time"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
)

// releasable is a resource with an id that entries refer to.
type releasable interface {
	references() int
	// free frees the id and removes its entries from the tables.
	free(*Syncer) error
}

func (p *port) references() int    { return p.refs }
func (b *backend) references() int { return int(b.refs) }
func (x *set) references() int     { return x.refs }
func (x *source) references() int  { return x.refs }

// deferRelease queues an entry that the index does not (or no longer) lead to, for release after a grace
// period.
func (s *Syncer) deferRelease(e *entry) { s.deferred = append(s.deferred, e) }

// release drops an entry's references. Resources without further references become unreferenced.
func (s *Syncer) release(e *entry) {
	if e.row != 0 {
		// A row that looks used would keep the table from being made smaller.
		codec.EraseFrontend(s.tables, e.row)
		s.rowNumbers.put(e.row)
	}
	if e.port != nil {
		s.unrefer(e.port, &e.port.refs)
	}
	if e.source != nil {
		s.unrefer(e.source, &e.source.refs)
	}
	if e.taken != nil {
		s.unrefer(e.taken, &e.taken.refs)
	}
	for _, set := range e.sets {
		if set != nil {
			s.unrefer(set, &set.refs)
		}
	}
}

// unrefer drops one reference to a resource.
func (s *Syncer) unrefer(x releasable, refs *int) {
	if *refs--; *refs == 0 {
		s.unreferenced = append(s.unreferenced, x)
	}
}

// CollectGarbage frees what was deferred, after a grace period, and what has no references. Call it
// periodically: once a second is plenty. It reports whether anything is left to free.
//
// Changes can be made during the grace period: what they defer waits for the next one.
func (s *Syncer) CollectGarbage() (more bool, err error) {
	s.gcMu.Lock()
	defer s.gcMu.Unlock()
	s.mu.Lock()
	deferred, unreferenced := len(s.deferred), len(s.unreferenced)
	s.released = 0
	err = s.bumpEpoch()
	s.mu.Unlock()
	if err != nil {
		return true, err
	}
	if deferred == 0 && unreferenced == 0 {
		return false, nil
	}
	if err := s.tables.WaitForReaders(); err != nil {
		return true, err
	}
	s.writer.Lock()
	defer s.writer.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	// A writer that was short of space has released all of these meanwhile, or none.
	err = s.releaseDeferred(max(0, deferred-s.released))
	if s.freed && err == nil {
		s.freed = false
		s.retryAt = time.Now() // what failed may fit now
	}
	return len(s.deferred) > 0 || len(s.unreferenced) > 0, err
}

// collectGarbage is CollectGarbage for a writer. It unlocks mu during the grace period, so that readers
// need not wait for it.
func (s *Syncer) collectGarbage() error {
	if err := s.bumpEpoch(); err != nil {
		return err
	}
	s.mu.Unlock()
	err := s.tables.WaitForReaders()
	s.mu.Lock()
	if err != nil {
		return err
	}
	n := len(s.deferred)
	err = s.releaseDeferred(n)
	s.released += n
	return err
}

// releaseDeferred releases the n oldest deferred entries, which no program uses, and frees what has no
// references then: a resource of an entry that was deferred later still has one.
func (s *Syncer) releaseDeferred(n int) error {
	for _, e := range s.deferred[:n] {
		s.release(e)
	}
	s.deferred = append([]*entry(nil), s.deferred[n:]...)
	return s.freeUnreferenced()
}

// freeUnreferenced frees what still has no reference: first sets, because they are what refers to backends;
// then affinity entries, which name ports and backends; then these.
func (s *Syncer) freeUnreferenced() error {
	dead := map[releasable]bool{}
	for len(s.unreferenced) > 0 {
		x := s.unreferenced[0]
		s.unreferenced = s.unreferenced[1:]
		if x.references() > 0 || dead[x] {
			continue
		}
		if set, ok := x.(*set); ok {
			s.freeSet(set)
			continue
		}
		dead[x] = true
	}
	errs := []error{s.gcAffinity(dead)}
	for x := range dead {
		if errs[0] == nil {
			err := x.free(s)
			if err == nil {
				continue
			}
			errs = append(errs, err)
		}
		s.unreferenced = append(s.unreferenced, x)
	}
	return errors.Join(errs...)
}

// freeSet frees a set's slots. A set may be in unreferenced twice.
func (s *Syncer) freeSet(x *set) {
	if x.extent.count == 0 {
		return
	}
	for n := x.extent.first; n < x.extent.end(); n++ {
		s.tables.Slots.Store(n, 0) // as in release
	}
	s.slots.put(extent{x.extent.first, x.extent.count + x.spare})
	x.extent, x.spare = extent{}, 0
	if s.sets[x.key] == x {
		delete(s.sets, x.key)
	}
	s.dropSlotHistory(x)
	for _, b := range x.backends() {
		if b.refs--; b.refs == 0 {
			s.unreferenced = append(s.unreferenced, b)
		}
	}
}

// gcAffinity deletes the affinity entries that name a service port or backend whose id is about to be
// freed.
func (s *Syncer) gcAffinity(dead map[releasable]bool) error {
	ports, backends := map[uint32]bool{}, map[uint32]bool{}
	for x := range dead {
		switch x := x.(type) {
		case *port:
			ports[x.id] = true
		case *backend:
			backends[x.id] = true
		}
	}
	if len(ports) == 0 && len(backends) == 0 {
		return nil
	}
	var named []bpf.AffinityKey
	err := s.tables.Affinity.Walk(func(e *bpf.AffinityEntry) bool {
		if ports[e.Key.Service] || backends[e.Backend] {
			named = append(named, e.Key)
		}
		return true
	})
	for _, key := range named {
		if err == nil {
			err = s.tables.Affinity.Delete(key)
		}
	}
	return err
}

func (p *port) free(s *Syncer) error {
	if err := s.tables.Services.Delete(p.id); err != nil {
		return err
	}
	s.portIDs.put(p.id)
	if s.ports[p.key] == p {
		delete(s.ports, p.key)
	}
	return nil
}

func (b *backend) free(s *Syncer) error {
	if err := s.tables.Backends.Store(b.id, bpf.Backend{}); err != nil {
		return err
	}
	s.backendIDs.put(b.id)
	if s.backends[b.key] == b {
		delete(s.backends, b.key)
	}
	return nil
}

// free implements releasable; freeUnreferenced calls freeSet itself.
func (x *set) free(s *Syncer) error {
	s.freeSet(x)
	return nil
}

func (x *source) free(s *Syncer) error {
	if name := sourceName(x.prefixes); s.sources[name] == x {
		delete(s.sources, name) // first: a partly deleted list must not be used again
	}
	for _, p := range x.prefixes {
		if err := s.tables.SourceRanges.Delete(codec.SourceRangeKey(x.id, p)); err != nil {
			return err
		}
	}
	s.sourceIDs.put(x.id)
	s.ranges -= uint32(len(x.prefixes))
	return nil
}
