// SPDX-License-Identifier: Apache-2.0

package sync

import (
	"net/netip"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/service"
)

type backendKey struct {
	addr     netip.AddrPort
	protocol service.Protocol
	local    bool
	node     netip.Addr // its node's address; its own where none is known
}

// A backend is an endpoint and its id; each set that holds it has a reference.
type backend struct {
	id   uint32
	key  backendKey
	refs int
}

func (s *Syncer) ensureBackend(key backendKey) (*backend, error) {
	if b := s.backends[key]; b != nil {
		return b, nil
	}
	id, ok := s.backendIDs.take()
	if !ok {
		return nil, datapath.NewFullError(datapath.SockMapBackends, s.tables.Backends.Len()-1)
	}
	if err := s.tables.Backends.Store(id, backendRow(key)); err != nil {
		s.backendIDs.put(id)
		return nil, err
	}
	b := &backend{id: id, key: key}
	s.backends[key] = b
	s.unused = append(s.unused, b)
	return b, nil
}

func backendKeyOf(b service.Backend, protocol service.Protocol) backendKey {
	node := b.Node
	if !node.IsValid() {
		node = b.Addr.Addr()
	}
	return backendKey{b.Addr, protocol, b.Local, node}
}

func backendRow(key backendKey) datapath.Backend {
	b := datapath.Backend{
		Address:  datapath.AddressFrom(key.addr.Addr()),
		Node:     datapath.AddressFrom(key.node),
		Port:     datapath.NetworkOrder(key.addr.Port()),
		Protocol: uint8(key.protocol),
	}
	if key.local {
		b.Local = 1
	}
	return b
}
