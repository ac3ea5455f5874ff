// SPDX-License-Identifier: Apache-2.0

package bpf

// BackendLossKey is a backend on another node, with a value of enum edge_reason.
type BackendLossKey = EdgeTCLossKey

// BackendLoss counts the packets of clients that did not reach a backend for a reason.
type BackendLoss = EdgeTCLoss

// Reasons of BackendLossKey.
const (
	LostWithoutRoute   = uint32(EdgeTCEdgeReasonEDGE_DROP_NO_ROUTE)
	LostWithoutAddress = uint32(EdgeTCEdgeReasonEDGE_DROP_NO_ADDRESS)
	LostWithoutPort    = uint32(EdgeTCEdgeReasonEDGE_DROP_NO_PORT)
)

// BackendLosses returns the counters of packets that the edge dropped on their way to a backend on another node. They
// grow for as long as the kernel keeps an entry, which is gone when others needed its place.
func (d EdgeKernel) BackendLosses() Hash[BackendLossKey, BackendLoss] {
	return edgeTable[BackendLossKey, BackendLoss](d, EdgeTCMapBackendLosses)
}

// PolicyDrops returns how many packets of clients outside each frontend has dropped because of traffic policy Local.
// They grow for as long as the kernel keeps an entry.
func (d EdgeKernel) PolicyDrops() Hash[FrontendKey, uint64] {
	return edgeTable[FrontendKey, uint64](d, EdgeTCMapPolicyDrops)
}
