// SPDX-License-Identifier: Apache-2.0

package service

import "net/netip"

// Config holds the operator's settings of a node. It does not change during the life of a Cluster.
type Config struct {
	// NodeName is the name of this node's Node object. Endpoints and pods with this node name are local;
	// without a name nothing is local (R11).
	NodeName string
	// LocalByAddress makes an endpoint without a node name local if it has an address of this node, unlike
	// kube-proxy (R11). It is for manifests, where node names are usually missing.
	LocalByAddress bool
	// Manifests means that the objects come from manifests, where a Service without a matching
	// EndpointSlice is a problem. With an API server that is normal.
	Manifests bool
	// ServiceProxyName also admits Services whose label service.kubernetes.io/service-proxy-name has this
	// value (R1). If empty, only Services without the label are admitted.
	ServiceProxyName string
	// NodePortAddresses selects, by prefix, the addresses of this node that serve NodePorts. In a family
	// without a prefix, the node's primary address does; with PrimaryNodePorts it does in any case (R22).
	NodePortAddresses []netip.Prefix
	PrimaryNodePorts  bool
	// LocalhostNodePorts serves NodePorts on 127.0.0.1 and ::1 to clients in the
	// node's own network namespace (R22).
	LocalhostNodePorts bool
	// PodNetworks are the configured pod networks (Cluster.PodNetworks).
	PodNetworks []netip.Prefix
	// Algorithm is the default without the annotation beeline.io/algorithm; empty means Random.
	Algorithm Algorithm
	// TableSize is the number of slots of each Maglev table: a prime number.
	TableSize uint32
	// DSR is the default without the annotation beeline.io/dsr; empty means DSROff.
	DSR DSR
	// Edge means that this node serves clients outside the cluster.
	Edge bool
	// DSRHybrid restricts DSR to TCP, unless a Service has the annotation.
	DSRHybrid bool
	// Balancers are networks, besides the cluster's nodes, from which encapsulated packets for
	// backends of this node are accepted.
	Balancers []netip.Prefix
	// KeepTCP puts endpoints of TCP ports that serve but get no new connections into Plan.Retained, as is
	// always done for UDP.
	KeepTCP bool
	// MasqueradeAll masquerades pods that connect to any Service address, also to a ClusterIP (R19). It needs the
	// edge, which decides instead of the pods' sockets.
	MasqueradeAll bool
	// RefuseOutsideClusterIP rejects clients outside the cluster at ClusterIPs (R20).
	RefuseOutsideClusterIP bool
	// RefuseForeignExternalIPs ignores externalIPs for pods and this node, and for all clients if
	// the address belongs to a Node or to the API server. Otherwise anyone who may create a Service
	// can intercept traffic to any address (CVE-2020-8554, R26).
	RefuseForeignExternalIPs bool
}

// DefaultConfig returns the defaults of kube-proxy 1.36 in nftables mode, plus NodePorts on the loopback
// addresses.
func DefaultConfig() Config {
	return Config{LocalhostNodePorts: true}
}
