// SPDX-License-Identifier: Apache-2.0

package service

import (
	"net/netip"
	"time"
)

// Object is an input: one of *Service, *EndpointSlice, *Node, *Pod,
// *ServiceCIDR, *Namespace and *RuntimeClass, trimmed to what the rules read.
// Objects are immutable once they have been handed over.
type Object interface {
	Ref() Ref
}

// Change is one object that came, changed (Object set) or went (Object nil).
type Change struct {
	Ref    Ref
	Object Object
}

// Service is a v1 Service as the rules read it.
type Service struct {
	Namespace, Name string
	Created         time.Time
	// ProxyName is the label service.kubernetes.io/service-proxy-name;
	// HasProxyName says whether the label is there at all (R1).
	ProxyName    string
	HasProxyName bool

	Type string
	// ClusterIPs in the object's order; "None" and empty entries are kept for R3.
	ClusterIPs []string
	IPFamilies []Family

	ExternalIPs   []netip.Addr
	IngressIPs    []netip.Addr // status.loadBalancer.ingress that R24 admits
	SourceRanges  []netip.Prefix
	Ports         []ServicePort
	Affinity      time.Duration // zero: none
	ExternalLocal bool          // externalTrafficPolicy: Local
	InternalLocal bool          // internalTrafficPolicy: Local
	// Algorithm is the annotation beeline.io/algorithm; empty: Config.Algorithm.
	Algorithm Algorithm
	// DSR is the annotation beeline.io/dsr; empty: Config.DSR. DSRHybrid is beeline.io/dsr-hybrid;
	// empty: Config.DSRHybrid. Stateless is beeline.io/stateless.
	DSR                  DSR
	DSRHybrid, Stateless Switch
	// HealthCheckNodePort of a LoadBalancer with externalTrafficPolicy Local.
	HealthCheckNodePort uint16
	// Check is how its endpoints' health is asked after; the zero value where
	// CheckErrors say that the annotations are wrong.
	Check       HealthCheck
	CheckErrors []AnnotationError
}

// ServicePort is one entry of spec.ports. Ports are in host byte order.
type ServicePort struct {
	Name     string
	Protocol Protocol
	Port     uint16
	NodePort uint16 // 0: none
}

// EndpointSlice is a discovery.k8s.io/v1 EndpointSlice as the rules read it.
type EndpointSlice struct {
	Namespace, Name string
	Service         string // label kubernetes.io/service-name
	Headless        bool   // label service.kubernetes.io/headless present (R2)
	// Family is zero for address types that are no IP family (FQDN).
	Family    Family
	Ports     []EndpointPort
	Endpoints []Endpoint
}

// EndpointPort is one entry of ports with a name and a number (R5).
type EndpointPort struct {
	Name     string
	Protocol Protocol
	Port     uint16
}

// Endpoint is one entry of endpoints.
type Endpoint struct {
	Addr                        netip.Addr // addresses[0]
	Node                        string
	Hints                       *Hints // nil: none
	Ready, Serving, Terminating bool   // R9 applied
	// Weight is the annotation beeline.io/weight of the slice: 1 to 255, 1 where
	// there is none, 0 for an endpoint that takes no new connections.
	Weight uint8
}

// Hints name the nodes and zones that an endpoint is meant for (R13). Few endpoints have
// any, and many are kept.
type Hints struct{ Nodes, Zones []string }

// Node is a v1 Node as the rules read it.
type Node struct {
	Name string
	// Addresses are the InternalIPs, then the ExternalIPs, in the object's order.
	Addresses []netip.Addr
	PodCIDRs  []netip.Prefix
	Zone      string // label topology.kubernetes.io/zone
}

// Pod is a v1 Pod as the rules read it: its hostPorts (R33), and whether it has
// opted out of the socket shortcut (OptOuts).
type Pod struct {
	Namespace, Name, UID string
	// StaticUID is set for a mirror pod: the UID by which the kubelet knows the
	// static pod that it stands for, and names its cgroup.
	StaticUID   string
	Created     time.Time
	Node        string
	HostNetwork bool
	// Finished: phase Succeeded or Failed.
	Finished, Deleting bool
	Pending            bool // phase Pending: it may have no process yet
	IPs                []netip.Addr
	HostPorts          []PodPort
	RuntimeClass       string // spec.runtimeClassName; empty: none
	Shortcut           Shortcut
}

// Shortcut is the annotation beeline.io/socket-shortcut: ShortcutOn,
// ShortcutOff, empty where there is none, or what is written there by mistake.
type Shortcut string

// The values that mean something.
const (
	ShortcutOn  Shortcut = "on"
	ShortcutOff Shortcut = "off"
)

// PodPort is one container port with a hostPort. HostIP is the zero Addr where
// the object gives none, or an unspecified address.
type PodPort struct {
	HostIP        netip.Addr
	HostPort      uint16
	ContainerPort uint16
	Protocol      Protocol
}

// ServiceCIDR is a networking.k8s.io/v1 ServiceCIDR.
type ServiceCIDR struct {
	Name  string
	CIDRs []netip.Prefix
}

// Namespace is a v1 Namespace as the rules read it.
type Namespace struct {
	Name     string
	Shortcut Shortcut
}

// RuntimeClass is a node.k8s.io/v1 RuntimeClass as the rules read it.
type RuntimeClass struct {
	Name     string
	Shortcut Shortcut
}

// Ref identifies the object.
func (s *Service) Ref() Ref { return Ref{KindService, s.Namespace, s.Name} }

// Ref identifies the object.
func (s *EndpointSlice) Ref() Ref { return Ref{KindEndpointSlice, s.Namespace, s.Name} }

// Ref identifies the object.
func (n *Node) Ref() Ref { return Ref{KindNode, "", n.Name} }

// Ref identifies the object.
func (p *Pod) Ref() Ref { return Ref{KindPod, p.Namespace, p.Name} }

// Ref identifies the object.
func (c *ServiceCIDR) Ref() Ref { return Ref{KindServiceCIDR, "", c.Name} }

// Ref identifies the object.
func (n *Namespace) Ref() Ref { return Ref{KindNamespace, "", n.Name} }

// Ref identifies the object.
func (c *RuntimeClass) Ref() Ref { return Ref{KindRuntimeClass, "", c.Name} }
