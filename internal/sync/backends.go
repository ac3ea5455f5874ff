// SPDX-License-Identifier: Apache-2.0

package sync

import (
	"net/netip"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/service"
)

// A backendKey is what a row of the table says. There are many, so it is as small as
// that, and without pointers.
type backendKey struct {
	address, node   datapath.Address // the node's is its own where none is known
	port            uint16           // in network byte order
	protocol, local uint8
}

func (k *backendKey) addrPort() netip.AddrPort {
	return netip.AddrPortFrom(k.address.Addr(), datapath.NetworkOrder(k.port))
}

// A backend is an endpoint and its id; each set that holds it has a reference.
type backend struct {
	id   uint32
	key  backendKey
	refs int32
}

func (s *Syncer) ensureBackend(key backendKey) (*backend, error) {
	if b := s.backends[key]; b != nil {
		return b, nil
	}
	if err := s.spare(datapath.SockMapBackends, uint32(len(s.backends)), s.tables.Backends.Len()-1); err != nil {
		return nil, err
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
	key := backendKey{
		address: datapath.AddressFrom(b.Addr.Addr()), node: datapath.AddressFrom(node),
		port: datapath.NetworkOrder(b.Addr.Port()), protocol: uint8(protocol),
	}
	if b.Local {
		key.local = 1
	}
	return key
}

func backendRow(key backendKey) datapath.Backend {
	return datapath.Backend{Address: key.address, Node: key.node, Port: key.port, Protocol: key.protocol, Local: key.local}
}

func keyOfRow(row datapath.Backend) backendKey {
	return backendKey{row.Address, row.Node, row.Port, row.Protocol, row.Local}
}
