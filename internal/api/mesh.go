// SPDX-License-Identifier: Apache-2.0

package api

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"beeline.io/beeline/internal/util/suggest"
)

// MeshPod is the state of a pod that has a proxy.
type MeshPod struct {
	// Name is the pod's in Kubernetes. For one of --mesh-cgroups it may be empty, and NoNameReason says why.
	Name         string `json:"name,omitempty"`
	NoNameReason string `json:"noNameReason,omitempty"`
	// UID is that of a pod that --mesh-pods selects; empty for one of --mesh-cgroups.
	UID string `json:"uid,omitempty"`
	// Proxy is what tells its proxy from applications.
	Proxy ProxyIdentity `json:"proxy"`
	// Native: its proxy is an init container that does not end.
	Native          bool   `json:"nativeSidecar,omitempty"`
	CgroupDirectory string `json:"cgroupDirectory,omitempty"`
	// CgroupID is the id of the cgroup; 0: there is none.
	CgroupID uint64 `json:"cgroupID,omitempty"`
	// NetNSCookie is the cookie of its network namespace; 0: the cgroup has had no process yet.
	NetNSCookie uint64 `json:"netnsCookie,omitempty"`
	// ProxyListeners is the number of the proxy's sockets for inbound connections.
	ProxyListeners int `json:"proxyListeners"`
	// Error is why connections do not go to the proxy; empty: they do.
	Error string `json:"error,omitempty"`
}

// ProxyIdentity is what tells the proxy of a pod from applications: the proxy is a process that has one of these.
type ProxyIdentity struct {
	// UID and GID are as the node has them, also if the pod has a user namespace; nil: they do not tell.
	UID *uint32 `json:"uid,omitempty"`
	GID *uint32 `json:"gid,omitempty"`
	// Cgroup is that of the proxy's container; empty: unknown.
	Cgroup string `json:"cgroup,omitempty"`
}

// Known reports whether anything tells the proxy.
func (i *ProxyIdentity) Known() bool { return i.UID != nil || i.GID != nil || i.Cgroup != "" }

// Equal reports whether both tell the same processes.
func (i *ProxyIdentity) Equal(other *ProxyIdentity) bool {
	same := func(a, b *uint32) bool { return a == b || a != nil && b != nil && *a == *b }
	return same(i.UID, other.UID) && same(i.GID, other.GID) && i.Cgroup == other.Cgroup
}

func (i *ProxyIdentity) String() string {
	var parts []string
	if i.UID != nil {
		parts = append(parts, fmt.Sprintf("user %d", *i.UID))
	}
	if i.GID != nil {
		parts = append(parts, fmt.Sprintf("group %d", *i.GID))
	}
	if i.Cgroup != "" {
		parts = append(parts, "its container")
	}
	return cmp.Or(strings.Join(parts, ", "), "unknown")
}

// MeshLeft is a pod that is selected and left alone.
type MeshLeft struct {
	Name string `json:"name"`
	Why  string `json:"why"`
}

// MeshStatus is the state of the sidecar shortcut.
type MeshStatus struct {
	Pods         []MeshPod  `json:"pods"`
	LeftAlone    []MeshLeft `json:"leftAlone,omitempty"`
	OutboundPort uint16     `json:"outboundPort"`
	InboundPort  uint16     `json:"inboundPort"`
}

// Served reports whether all connections of the pod go to its proxy.
func (p *MeshPod) Served() bool { return p.Error == "" && p.NetNSCookie != 0 && p.Proxy.Known() }

// Label is what people call the pod.
func (p *MeshPod) Label() string { return cmp.Or(p.Name, p.CgroupDirectory) }

// Find returns the pod with a name, with or without its namespace, or with a cgroup or a directory on the way to that.
//
// Errors: what stands for several pods, or for none.
func (s *MeshStatus) Find(name string) (*MeshPod, error) {
	var exact, found []*MeshPod
	for i := range s.Pods {
		p := &s.Pods[i]
		switch {
		case name == "":
		case p.Name == name || p.CgroupDirectory == name:
			exact = append(exact, p)
		case strings.HasSuffix(p.Name, "/"+name) || slices.Contains(strings.Split(p.CgroupDirectory, "/"), name):
			found = append(found, p)
		}
	}
	if len(exact) > 0 {
		found = exact
	}
	// --mesh-pods may select a pod that --mesh-cgroups names, too.
	found = slices.CompactFunc(found, func(a, b *MeshPod) bool { return a.CgroupDirectory == b.CgroupDirectory && a.CgroupDirectory != "" })
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return nil, fmt.Errorf("%q stands for several pods with a proxy: write %s or %s", name, found[0].apart(found[1]), found[1].apart(found[0]))
	}
	return nil, s.notFound(name)
}

// apart is what people call the pod when they do not mean another one.
func (p *MeshPod) apart(other *MeshPod) string {
	if p.Label() == other.Label() {
		return p.CgroupDirectory
	}
	return p.Label()
}

// mostUnnamed is how many pods without a name an error lists.
const mostUnnamed = 3

func (s *MeshStatus) notFound(name string) error {
	for _, l := range s.LeftAlone {
		if l.Name == name {
			return fmt.Errorf("pod %s is left alone: %s", name, l.Why)
		}
	}
	var known, unnamed []string
	for i := range s.Pods {
		p := &s.Pods[i]
		known = append(known, p.Label())
		if p.NoNameReason != "" {
			unnamed = append(unnamed, fmt.Sprintf("%s: %s", p.CgroupDirectory, p.NoNameReason))
		}
	}
	hint := suggest.DidYouMean(name, known)
	if n := len(unnamed); n > mostUnnamed {
		unnamed = append(unnamed[:mostUnnamed], fmt.Sprintf("and %d others", n-mostUnnamed))
	}
	if len(unnamed) > 0 {
		hint = cmp.Or(hint, ".") + " If it is one of these, whose names are not known, pass its cgroup instead: " + strings.Join(unnamed, "; ")
	}
	return fmt.Errorf("no pod %q with a proxy on this node%s", name, hint)
}
