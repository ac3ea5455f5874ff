// SPDX-License-Identifier: Apache-2.0

package codec

import (
	"net/netip"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
)

// FrontendKey encodes the address that clients send to.
func FrontendKey(k service.FrontendKey) bpf.FrontendKey {
	return bpf.FrontendKey{
		Address:  bpf.AddressFrom(k.Addr),
		Port:     bpf.NetworkOrder(k.Port),
		Protocol: uint8(k.Protocol),
	}
}

// FrontendKeyOf is the inverse of FrontendKey.
func FrontendKeyOf(k bpf.FrontendKey) service.FrontendKey {
	return service.FrontendKey{
		Addr:     k.Address.Addr(),
		Port:     bpf.NetworkOrder(k.Port),
		Protocol: service.Protocol(k.Protocol),
	}
}

// AskedFrontend returns the key of the frontend that the first packet of a flow is sent to.
func AskedFrontend(t bpf.Tuple) bpf.FrontendKey {
	return bpf.FrontendKey{Address: bpf.Address{Bytes: t.Destination.Bytes}, Port: t.DestinationPort, Protocol: t.Protocol}
}

// NetworkKey encodes a network, for longest-prefix tables.
func NetworkKey(p netip.Prefix) bpf.NetworkKey {
	return bpf.NetworkKey{Prefixlen: bpf.PrefixLen(p), Address: bpf.AddressFrom(p.Masked().Addr())}
}

// SourceRangeKey encodes a range of admitted sources, of the list with an ID.
func SourceRangeKey(list uint32, p netip.Prefix) bpf.SourceRangeKey {
	return bpf.SourceRangeKey{
		Prefixlen: 32 + bpf.PrefixLen(p),
		SourceSet: list,
		Address:   bpf.AddressFrom(p.Masked().Addr()),
	}
}

// ReservedPort returns the port at which bind() is refused for a frontend, if it is a NodePort or HostPort.
func (f *Frontend) ReservedPort() (key bpf.ReservedPort, ok bool) {
	key = bpf.ReservedPort{Port: f.row.Key.Port, Protocol: f.row.Key.Protocol, IpVersion: 6}
	if f.row.Key.Address.Addr().Is4() {
		key.IpVersion = 4
	}
	return key, f.Kind() == service.NodePort || f.Kind() == service.HostPort
}
