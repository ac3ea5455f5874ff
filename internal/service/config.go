// SPDX-License-Identifier: Apache-2.0

package service

import "net/netip"

// Config is what the operator of a node decides, apart from all objects. It
// does not change while a Table lives.
type Config struct {
	// NodeName is the name of this node's Node object. Endpoints and pods that
	// name it are local; without it nothing is local (R11).
	NodeName string
	// LocalByAddress: an endpoint that names no node is this node's if it has one of its
	// addresses. Not so for kube-proxy (R11): it is for files, where nobody else says it.
	LocalByAddress bool
	// Manifests: the objects are written by hand, so a Service whose ports no EndpointSlice
	// has is a problem. With an API server it is ordinary.
	Manifests bool
	// ServiceProxyName admits Services whose label
	// service.kubernetes.io/service-proxy-name has this value, beside those
	// without the label (R1). Empty admits the latter only.
	ServiceProxyName string
	// NodePortAddresses select, by prefix, the addresses of this node on which
	// NodePorts are served. A family with no prefix here is served on the node's
	// primary address of that family (R22).
	NodePortAddresses []netip.Prefix
	// LocalhostNodePorts serves NodePorts on 127.0.0.1 and ::1 to clients in the
	// node's own network namespace (R22).
	LocalhostNodePorts bool
	// PodNetworks are where pods are; empty: the podCIDRs of all Nodes.
	PodNetworks []netip.Prefix
	// Algorithm is that of Services without the annotation beeline.io/algorithm;
	// empty: Random.
	Algorithm Algorithm
	// TableSize is the number of slots of each Maglev table: a prime number.
	TableSize uint32
	// DSR is that of Services without the annotation beeline.io/dsr; empty: DSROff.
	DSR DSR
	// DSRHybrid: where a Service does not say otherwise, only TCP goes by DSR.
	DSRHybrid bool
	// Balancers are networks of others than the cluster's nodes whose encapsulated packets
	// are for backends of this node.
	Balancers []netip.Prefix
	// KeepTCP plans which endpoints of TCP ports serve though no new connection
	// reaches them, as is always done for UDP (Plan.Kept).
	KeepTCP bool
	// MasqueradeAll masquerades pods that ask for a ClusterIP, too (R19).
	MasqueradeAll bool
	// RefuseOutsideClusterIP rejects clients outside of the cluster that ask for
	// a ClusterIP (R20).
	RefuseOutsideClusterIP bool
	// RefuseForeignExternalIPs ignores externalIPs for pods and this node, and altogether
	// where one is an address of a Node or of the API server: whoever may create a Service
	// could else intercept what others send to any address (CVE-2020-8554, R26).
	RefuseForeignExternalIPs bool
}

// DefaultConfig is what kube-proxy 1.36 does by default in its nftables mode,
// with NodePorts on the loopback addresses besides.
func DefaultConfig() Config {
	return Config{LocalhostNodePorts: true}
}
