// SPDX-License-Identifier: Apache-2.0

package service

import "net/netip"

// Config holds the operator's settings of a node. It does not change during the life of a Cluster.
type Config struct {
	// NodeName is the name of this node's Node object. Endpoints and pods with that node name are
	// local; without a name nothing is local (R11).
	NodeName string
	// LocalByAddress treats an endpoint without a node name as local if it has an address of this
	// node. kube-proxy does not (R11). It is for manifests, where node names are usually missing.
	LocalByAddress bool
	// Manifests means that the objects are written by hand, so that a Service without a matching
	// EndpointSlice is a problem. With an API server it is normal.
	Manifests bool
	// ServiceProxyName also admits Services whose label service.kubernetes.io/service-proxy-name
	// has this value (R1). If it is empty, only Services without the label are admitted.
	ServiceProxyName string
	// NodePortAddresses selects, by prefix, the addresses of this node that serve NodePorts. If it
	// has no prefix of a family, the node's primary address of that family does (R22).
	NodePortAddresses []netip.Prefix
	// LocalhostNodePorts serves NodePorts on 127.0.0.1 and ::1 to clients in the
	// node's own network namespace (R22).
	LocalhostNodePorts bool
	// PodNetworks are the networks of pods; if empty, the podCIDRs of all Nodes.
	PodNetworks []netip.Prefix
	// Algorithm is the default without the annotation beeline.io/algorithm; empty means Random.
	Algorithm Algorithm
	// TableSize is the number of slots of each Maglev table: a prime number.
	TableSize uint32
	// DSR is the default without the annotation beeline.io/dsr; empty means DSROff.
	DSR DSR
	// Edge means that this node serves clients outside the cluster.
	Edge bool
	// DSRHybrid makes only TCP use DSR, unless a Service has the annotation.
	DSRHybrid bool
	// Balancers are networks, besides the cluster's nodes, from which encapsulated packets for
	// backends of this node are accepted.
	Balancers []netip.Prefix
	// KeepTCP puts endpoints of TCP ports that serve but get no new connections into Plan.Retained,
	// as is always done for UDP.
	KeepTCP bool
	// MasqueradeAll also masquerades pods that connect to a ClusterIP (R19).
	MasqueradeAll bool
	// RefuseOutsideClusterIP rejects clients outside the cluster at ClusterIPs (R20).
	RefuseOutsideClusterIP bool
	// RefuseForeignExternalIPs ignores externalIPs for pods and this node, and for all clients if
	// the address belongs to a Node or to the API server. Otherwise anyone who may create a Service
	// can intercept traffic to any address (CVE-2020-8554, R26).
	RefuseForeignExternalIPs bool
}

// DefaultConfig returns the defaults of kube-proxy 1.36 in nftables mode, with NodePorts on the
// loopback addresses in addition.
func DefaultConfig() Config {
	return Config{LocalhostNodePorts: true}
}
