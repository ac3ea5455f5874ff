// SPDX-License-Identifier: Apache-2.0

package reconcile

import "beeline.io/beeline/internal/bpf"

// A reservation is a port at which bind() is refused on the host. Each frontend with the port holds a
// reference: from before programs can reach the frontend until none can.
type reservation struct {
	key    bpf.ReservedPort
	stored bool // the table has it
	refs   int
}

func (x *reservation) references() int { return x.refs }

// refer gives a new entry its reservation, which may not be in the table yet.
func (s *Syncer) refer(e *entry) {
	key, ok := e.content.ReservedPort()
	if !ok {
		return
	}
	if s.reserved[key] == nil {
		s.reserved[key] = &reservation{key: key}
	}
	e.taken = s.reserved[key]
	e.taken.refs++
}

// reserve is refer for an entry that is about to be published, and writes the reservation to the table.
func (s *Syncer) reserve(e *entry) error {
	s.refer(e)
	if e.taken == nil || e.taken.stored {
		return nil
	}
	if err := s.tables.ReservedPorts.Put(e.taken.key, 1); err != nil {
		return err
	}
	e.taken.stored = true
	return nil
}

func (x *reservation) free(s *Syncer) error {
	if err := s.tables.ReservedPorts.Delete(x.key); err != nil {
		return err
	}
	delete(s.reserved, x.key)
	return nil
}

func (r *restorer) readReservedPorts() error {
	all, err := r.tables.ReservedPorts.All()
	if err != nil {
		return err
	}
	for key := range all {
		x := &reservation{key: key, stored: true}
		r.reserved[key] = x
		r.unreferenced = append(r.unreferenced, x)
	}
	return nil
}

func (a *auditor) reservedPorts() {
	want := map[bpf.ReservedPort]uint32{}
	for key, x := range a.reserved {
		if x.stored {
			want[key] = 1
		}
	}
	auditHash(a, a.tables.ReservedPorts, want)
}
