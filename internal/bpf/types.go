// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"encoding/json"
	"math/bits"
	"net/netip"
	"reflect"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The structures of bpf/lb/types.h. Addresses are 16 bytes in network byte order, with IPv4 mapped; ports
// are in network byte order (NetworkOrder); everything else is in host byte order.
type (
	Address        = SockAddress
	FrontendKey    = SockFrontendKey
	Frontend       = SockFrontend
	FrontendLists  = SockFrontendLists
	SlotRange      = SockSlotRange
	Decision       = SockDecision
	Backend        = SockBackend
	AffinityKey    = SockAffinityKey
	AffinityEntry  = SockAffinityEntry
	SourceRangeKey = SockSourceRangeKey
	NetworkKey     = SockNetworkKey
	Network        = SockNetwork
	ServiceName    = SockServiceName
	SocketCounters = SockSocketCounters
	Verdict        = SockVerdict
	// ReservedPort is a port at which bind() is refused on the host.
	ReservedPort = SockReservedPortKey
	// StaleSocket is a socket that the GC pass has found.
	StaleSocket = SockGCStaleSocket
)

// The verdicts of a Decision. A Decision with slots has none: it is Balance.
const (
	Pass    = SockVerdictVERDICT_PASS
	Reject  = SockVerdictVERDICT_REJECT
	Drop    = SockVerdictVERDICT_DROP
	Balance = SockVerdictVERDICT_BALANCE
	Answer  = SockVerdictVERDICT_ANSWER
)

// The flags of a Frontend. FlagMasquerade is shifted left by the source class.
const (
	FlagMasquerade    = SockFrontendFlagFRONTEND_MASQUERADE
	FlagLoopbackExact = SockFrontendFlagFRONTEND_LOOPBACK_EXACT
	FlagOwnAddress    = SockFrontendFlagFRONTEND_OWN_ADDRESS
	FlagMaglev        = SockFrontendFlagFRONTEND_MAGLEV
	FlagUntracked     = SockFrontendFlagFRONTEND_UNTRACKED
	FlagHistory       = SockFrontendFlagFRONTEND_HISTORY
	FlagByPacket      = SockFrontendFlagFRONTEND_BY_PACKET
)

// The parts of a word of a frontend's history.
const (
	HistoryBackend   = SockHistoryWordHISTORY_BACKEND
	HistoryContested = SockHistoryWordHISTORY_CONTESTED
)

// DSR is how packets reach a backend of another node.
type DSR = SockDsr

// The values of a Frontend's Dsr.
const (
	DSRNone   = SockDsrDSR_NONE
	DSRIPIP   = SockDsrDSR_IPIP
	DSRGeneve = SockDsrDSR_GENEVE
	DSROpt    = SockDsrDSR_OPT
)

// Accepted are the kinds of packets of balancers that programs decapsulate.
type Accepted = SockDsrAccepted

// The kinds of Accepted.
const (
	AcceptTunnels = SockDsrAcceptedDSR_ACCEPT_TUNNELS
	AcceptOption  = SockDsrAcceptedDSR_ACCEPT_OPTION
)

// AgentMark is the SO_MARK of sockets that programs never redirect.
const AgentMark = SockSocketMarkMARK_AGENT

// The kinds of networks.
const (
	NetworkService = SockNetworkNETWORK_SERVICE // its addresses belong to Services
	NetworkPod     = SockNetworkNETWORK_POD     // its addresses belong to pods
	NetworkOwn     = SockNetworkNETWORK_OWN     // an address of this node inside a ServiceCIDR
)

// The owner kinds of a ServiceName.
const (
	OwnerService = 0
	OwnerPod     = 1
)

// Balancer is the owner of an address in the table Balancers.
type Balancer = EdgeTCBalancer

// The values of a Balancer.
const (
	IsBalancer = EdgeTCBalancerBALANCER
	IsOwn      = EdgeTCBalancerBALANCER_OWN
)

// AddressFrom maps an address of either family into 16 bytes.
func AddressFrom(a netip.Addr) Address { return Address{Bytes: a.As16()} }

// Addr is the inverse of AddressFrom.
func (a SockAddress) Addr() netip.Addr { return netip.AddrFrom16(a.Bytes).Unmap() }

func (a SockAddress) String() string { return a.Addr().String() }

// String is a key as users see it, such as 10.96.0.1:80/TCP.
func (k SockFrontendKey) String() string {
	return AddrPortFrom(k.Address.Bytes, k.Port).String() + "/" + protocolName(k.Protocol)
}

// protocolName is the name of an IP protocol, or its number.
func protocolName(protocol uint8) string {
	switch protocol {
	case unix.IPPROTO_TCP:
		return "TCP"
	case unix.IPPROTO_UDP:
		return "UDP"
	case unix.IPPROTO_SCTP:
		return "SCTP"
	}
	return strconv.Itoa(int(protocol))
}

// NetworkOrder converts a port from host to network byte order, and back. The programs are built only for
// little-endian machines.
func NetworkOrder(port uint16) uint16 { return bits.ReverseBytes16(port) }

// AddrPort returns the backend's address and port.
func (b SockBackend) AddrPort() netip.AddrPort {
	return netip.AddrPortFrom(b.Address.Addr(), NetworkOrder(b.Port))
}

// PrefixLen returns the length of a prefix whose address is mapped to 16 bytes.
func PrefixLen(p netip.Prefix) uint32 {
	if p.Addr().Is4() {
		return uint32(p.Bits()) + 96
	}
	return uint32(p.Bits())
}

// Prefix returns the prefix of a network key.
func (k SockNetworkKey) Prefix() netip.Prefix { return prefixFrom(k.Address, k.Prefixlen) }

// Prefix returns the admitted source of a range key.
func (k SockSourceRangeKey) Prefix() netip.Prefix { return prefixFrom(k.Address, k.Prefixlen-32) }

func prefixFrom(a Address, bits uint32) netip.Prefix {
	addr := a.Addr()
	if addr.Is4() && bits >= 96 {
		bits -= 96
	}
	return netip.PrefixFrom(addr, int(bits))
}

// MarshalJSON names the counters in lower camel case, like all other JSON here.
func (c SockSocketCounters) MarshalJSON() ([]byte, error) {
	named := map[string]uint64{}
	for field, value := range reflect.ValueOf(c).Fields() {
		if field.IsExported() {
			named[strings.ToLower(field.Name[:1])+field.Name[1:]] = value.Uint()
		}
	}
	return json.Marshal(named)
}

// Connection is the service address that a client sends to and the backend that serves it.
type Connection struct {
	Protocol         uint8
	Service, Backend netip.AddrPort
}

// Connection returns the connection of the socket.
func (s *SockGCStaleSocket) Connection() Connection {
	return Connection{
		Protocol: s.Protocol,
		Service:  AddrPortFrom(s.Service.Bytes, s.ServicePort),
		Backend:  AddrPortFrom(s.Backend.Bytes, s.BackendPort),
	}
}

// LocalAddr returns the socket's own address.
func (s *SockGCStaleSocket) LocalAddr() netip.AddrPort {
	return AddrPortFrom(s.Local.Bytes, s.LocalPort)
}

// AddrPortFrom returns an address and a port as programs have them.
func AddrPortFrom(address [16]byte, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(address).Unmap(), NetworkOrder(port))
}
