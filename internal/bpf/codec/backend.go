// SPDX-License-Identifier: Apache-2.0

package codec

import (
	"net/netip"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
)

// A Backend is the decoded row of a backend. There are many, so it is small and without pointers.
type Backend struct {
	address, node   bpf.Address // node is the backend's own address if the node is unknown
	port            uint16      // in network byte order
	protocol, local uint8
}

// NewBackend encodes an endpoint.
func NewBackend(b service.Backend, protocol service.Protocol) Backend {
	node := b.Node
	if !node.IsValid() {
		node = b.Addr.Addr()
	}
	row := Backend{
		address: bpf.AddressFrom(b.Addr.Addr()), node: bpf.AddressFrom(node),
		port: bpf.NetworkOrder(b.Addr.Port()), protocol: uint8(protocol),
	}
	if b.Local {
		row.local = 1
	}
	return row
}

// BackendOf decodes a row.
func BackendOf(row bpf.Backend) Backend {
	return Backend{row.Address, row.Node, row.Port, row.Protocol, row.Local}
}

// Row is the inverse of BackendOf.
func (b *Backend) Row() bpf.Backend {
	return bpf.Backend{Address: b.address, Node: b.node, Port: b.port, Protocol: b.protocol, Local: b.local}
}

// AddrPort returns the address and port of the endpoint.
func (b *Backend) AddrPort() netip.AddrPort {
	return netip.AddrPortFrom(b.address.Addr(), bpf.NetworkOrder(b.port))
}

// Addr returns the address of the endpoint.
func (b *Backend) Addr() netip.Addr { return b.address.Addr() }

// Node returns the address of the endpoint's node, or the endpoint's own if the node is unknown.
func (b *Backend) Node() netip.Addr { return b.node.Addr() }

// KnowsNode reports whether the node's address is known, and different from the endpoint's.
func (b *Backend) KnowsNode() bool { return b.node != b.address }

// Protocol returns the protocol of the endpoint.
func (b *Backend) Protocol() service.Protocol { return service.Protocol(b.protocol) }

// Local reports whether the endpoint is on this node.
func (b *Backend) Local() bool { return b.local != 0 }
