// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"net/netip"
	"time"

	"beeline.io/beeline/internal/cluster/sidecar"
)

// Object is an input: *Service, *EndpointSlice, *Node, *Pod, *ServiceCIDR, *Namespace or *RuntimeClass, reduced
// to the fields that the rules use. Objects are immutable once they are passed on.
type Object interface {
	Ref() Ref
}

// Change is an object that was added or changed (Object set) or removed (Object nil).
type Change struct {
	Ref    Ref
	Object Object
	// Last is the last state of a removed Node if it changed after the change before; else nil.
	Last Object
}

// Service holds the fields of a v1 Service that the rules use.
type Service struct {
	Namespace, Name string
	Created         time.Time
	// ProxyName is the label service.kubernetes.io/service-proxy-name; HasProxyName means that the label
	// exists (R1).
	ProxyName    string
	HasProxyName bool

	Type string
	// ClusterIPs are in the object's order; "None" and empty entries are kept for R3.
	ClusterIPs []string
	IPFamilies []Family

	ExternalIPs   []netip.Addr
	IngressIPs    []netip.Addr // status.loadBalancer.ingress that R24 admits
	SourceRanges  []netip.Prefix
	Ports         []ServicePort
	Affinity      time.Duration // zero: none
	ExternalLocal bool          // externalTrafficPolicy: Local
	InternalLocal bool          // internalTrafficPolicy: Local
	// Algorithm is the annotation beeline.io/algorithm; empty means Config.Algorithm.
	Algorithm Algorithm
	// DSR is the annotation beeline.io/dsr; empty means Config.DSR. DSRHybrid is beeline.io/dsr-hybrid;
	// empty means Config.DSRHybrid. Stateless is beeline.io/stateless.
	DSR                  DSR
	DSRHybrid, Stateless Switch
	// NodeOnly serves only the node's own network namespace, and only at the ClusterIPs. No API object has it:
	// it is for the agent's own Services.
	NodeOnly bool
	// HealthCheckNodePort is that of a LoadBalancer with externalTrafficPolicy Local.
	HealthCheckNodePort uint16
	// Check is the health check of its endpoints; the zero value if CheckErrors is not empty.
	Check       HealthCheck
	CheckErrors []AnnotationError
	Unknown     []AnnotationError // annotations beeline.io/... that it cannot have; so of the other objects
}

// ServicePort is one entry of spec.ports. Ports are in host byte order.
type ServicePort struct {
	Name     string
	Protocol Protocol
	Port     uint16
	NodePort uint16 // 0: none
}

// EndpointSlice holds the fields of a discovery.k8s.io/v1 EndpointSlice that the rules use.
type EndpointSlice struct {
	Namespace, Name string
	Service         string // label kubernetes.io/service-name
	Headless        bool   // label service.kubernetes.io/headless present (R2)
	// Family is zero for address types that are no IP family (FQDN).
	Family    Family
	Ports     []EndpointPort
	Endpoints []Endpoint
	// Triggered is the annotation endpoints.kubernetes.io/last-change-trigger-time: when the pod or Service
	// changed for which the slice was last written. Zero: unknown.
	Triggered time.Time
	Unknown   []AnnotationError
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
	// Weight is the annotation beeline.io/weight of the slice: 1 to 255, 1 by default, or 0 for an endpoint
	// that takes no new connections.
	Weight uint8
}

// Hints name the nodes and zones for which an endpoint is meant (R13). They are separate to save memory: few
// endpoints have any.
type Hints struct{ Nodes, Zones []string }

// Node holds the fields of a v1 Node that the rules use.
type Node struct {
	Name string
	// Addresses are the InternalIPs, then the ExternalIPs, in the object's order.
	Addresses []netip.Addr
	PodCIDRs  []netip.Prefix
	Zone      string // label topology.kubernetes.io/zone
	// Deleting means that it has a deletionTimestamp. ToBeDeleted is the taint with which the cluster
	// autoscaler announces that it removes the node (R35).
	Deleting, ToBeDeleted bool
	Unknown               []AnnotationError
}

// Pod holds the fields of a v1 Pod that the rules use: its hostPorts (R33), whether it opts out of the
// socket shortcut (OptOuts); and the proxy in it.
type Pod struct {
	Namespace, Name, UID string
	// StaticUID is set for a mirror pod: the UID of its static pod, after which the kubelet names the
	// cgroup.
	StaticUID   string
	Created     time.Time
	Node        string
	HostNetwork bool
	// Finished means phase Succeeded or Failed.
	Finished, Deleting bool
	Pending            bool // phase Pending: it may have no process yet
	IPs                []netip.Addr
	HostPorts          []PodPort
	RuntimeClass       string // spec.runtimeClassName; empty: none
	Shortcut           Shortcut
	Unknown            []AnnotationError
	Proxy              *sidecar.Proxy // nil: none, and no labels
}

// Shortcut is the annotation beeline.io/socket-shortcut: ShortcutOn, ShortcutOff, an invalid value, or empty if
// not set.
type Shortcut string

// The valid values.
const (
	ShortcutOn  Shortcut = "on"
	ShortcutOff Shortcut = "off"
)

// PodPort is one container port with a hostPort. HostIP is the zero Addr if it is not set or
// unspecified.
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

// Namespace holds the fields of a v1 Namespace that the rules use.
type Namespace struct {
	Name     string
	Shortcut Shortcut
	Unknown  []AnnotationError
}

// RuntimeClass holds the fields of a node.k8s.io/v1 RuntimeClass that the rules use.
type RuntimeClass struct {
	Name     string
	Shortcut Shortcut
	Unknown  []AnnotationError
}

// Ref returns the object's Ref.
func (s *Service) Ref() Ref { return Ref{KindService, s.Namespace, s.Name} }

// Ref returns the object's Ref.
func (s *EndpointSlice) Ref() Ref { return Ref{KindEndpointSlice, s.Namespace, s.Name} }

// Ref returns the object's Ref.
func (n *Node) Ref() Ref { return Ref{KindNode, "", n.Name} }

// Ref returns the object's Ref.
func (p *Pod) Ref() Ref { return Ref{KindPod, p.Namespace, p.Name} }

// CgroupUID is the UID after which the kubelet names the pod's cgroup.
func (p *Pod) CgroupUID() string { return cmp.Or(p.StaticUID, p.UID) }

// Ref returns the object's Ref.
func (c *ServiceCIDR) Ref() Ref { return Ref{KindServiceCIDR, "", c.Name} }

// Ref returns the object's Ref.
func (n *Namespace) Ref() Ref { return Ref{KindNamespace, "", n.Name} }

// Ref returns the object's Ref.
func (c *RuntimeClass) Ref() Ref { return Ref{KindRuntimeClass, "", c.Name} }
