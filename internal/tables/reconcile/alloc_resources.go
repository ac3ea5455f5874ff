// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
)

// A backend is an endpoint with its id; each set that contains it holds a reference.
type backend struct {
	id   uint32
	key  codec.Backend
	refs int32
}

func (s *Syncer) ensureBackend(key codec.Backend) (*backend, error) {
	if b := s.backends[key]; b != nil {
		return b, nil
	}
	if err := s.spare(bpf.SockMapBackends, uint32(len(s.backends)), s.tables.Backends.Len()-1); err != nil {
		return nil, err
	}
	id, ok := s.backendIDs.take()
	if !ok {
		return nil, bpf.NewFullError(bpf.SockMapBackends, s.tables.Backends.Len()-1)
	}
	if err := s.tables.Backends.Store(id, key.Row()); err != nil {
		s.backendIDs.put(id)
		return nil, err
	}
	b := &backend{id: id, key: key}
	s.backends[key] = b
	s.unreferenced = append(s.unreferenced, b)
	return b, nil
}
