// SPDX-License-Identifier: Apache-2.0

// Package sidecar reads from a Pod whether and how its connections go through a proxy in it: Istio's annotations and
// labels, and the users of containers. Package service keeps what it reads beside the fields that its rules use.
package sidecar

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Istio's annotations and labels (istio.io/api/annotation, istio.io/api/label).
const (
	istioTraffic     = "traffic.sidecar.istio.io/"
	istioInject      = "sidecar.istio.io/inject"
	istioMode        = "sidecar.istio.io/interceptionMode"
	istioDataplane   = "istio.io/dataplane-mode"
	istioRedirection = "ambient.istio.io/redirection"
	istioProxy       = "istio-proxy" // the container
	istioReroute     = "istio.io/reroute-virtual-interfaces"

	// Variables of the proxy's container, which have what the resource ProxyConfig says.
	istioDNSCapture = "ISTIO_META_DNS_CAPTURE"
	istioIntercept  = "ISTIO_META_INTERCEPTION_MODE"
)

// istioPorts are those of Istio's proxy itself that other hosts connect to: HBONE, the merged metrics, health, Envoy's
// metrics.
var istioPorts = []uint16{15008, 15020, 15021, 15090}

// A Proxy holds the fields of a v1 Pod that say whether and how its connections go through a proxy in the pod.
type Proxy struct {
	Labels map[string]string
	// Found: a container is the proxy. Native: it is an init container that does not end (KEP-753).
	Found, Native, Istio bool
	// UID and GID are those of the proxy's container; nil: not set.
	UID, GID *uint32
	// OtherUIDs and OtherGIDs are those that the other containers that run beside it have set.
	OtherUIDs, OtherGIDs []uint32
	// Container is the id of its container, as the kubelet reports it, without the runtime's name; empty: not
	// reported yet.
	Container string
	DNS       bool // it captures DNS
	// UserNamespace: the pod has a user namespace (hostUsers: false).
	UserNamespace bool
	// Left is why the pod is left alone whatever its labels; empty: it is not.
	Left string
	// Traffic are Istio's annotations of included and excluded ports, networks and devices, without the prefix
	// istioTraffic.
	Traffic map[string]string
	// Probes are the ports of the containers that the kubelet probes.
	Probes []uint16
}

// defaultProxyUser is the user of Istio's proxies.
const defaultProxyUser = 1337

// ProxyOf extracts the Proxy of a v1 Pod; nil if it has neither labels nor a proxy.
func ProxyOf(in *corev1.Pod) *Proxy {
	p := &Proxy{Labels: in.Labels, Left: leftToOthers(in), UserNamespace: in.Spec.HostUsers != nil && !*in.Spec.HostUsers}
	for i := range in.Spec.InitContainers {
		if c := &in.Spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			p.addContainer(in, c, true)
		}
	}
	for i := range in.Spec.Containers {
		p.addContainer(in, &in.Spec.Containers[i], false)
	}
	for name, value := range in.Annotations {
		if short, ok := strings.CutPrefix(name, istioTraffic); ok || name == istioReroute {
			if p.Traffic == nil {
				p.Traffic = map[string]string{}
			}
			p.Traffic[short] = value
		}
	}
	if !p.Found && len(p.Labels) == 0 {
		return nil
	}
	slices.Sort(p.Probes)
	p.Probes = slices.Compact(p.Probes)
	return p
}

// leftToOthers returns why no sidecar takes the pod's connections.
func leftToOthers(in *corev1.Pod) string {
	inject := cmp.Or(in.Labels[istioInject], in.Annotations[istioInject])
	switch {
	case in.Annotations[istioRedirection] == "enabled" || in.Labels[istioDataplane] == "ambient" && inject != "true":
		return "it is in Istio's ambient mesh, whose proxies are not in the pod"
	case inject == "false":
		return istioInject + " is \"false\""
	case in.Annotations[istioMode] == "NONE":
		return istioMode + " is NONE"
	}
	return ""
}

// addContainer notes a container that is the proxy, or the ports that the kubelet probes at another one.
func (p *Proxy) addContainer(pod *corev1.Pod, c *corev1.Container, native bool) {
	uid, gid := userOf(pod, c)
	istio := c.Name == istioProxy
	if p.Found || !istio && (uid == nil || *uid != defaultProxyUser) {
		p.Probes = append(p.Probes, probedPorts(c)...)
		p.OtherUIDs, p.OtherGIDs = appendID(p.OtherUIDs, uid), appendID(p.OtherGIDs, gid)
		return
	}
	p.Found, p.Native, p.Istio, p.UID, p.GID = true, native, istio, uid, gid
	p.Container = containerID(pod, c.Name)
	p.DNS = hasVariable(c, istioDNSCapture, "true")
	if p.Left == "" && hasVariable(c, istioIntercept, "NONE") {
		p.Left = "its proxy has " + istioIntercept + "=NONE, as a ProxyConfig says"
	}
}

func appendID(all []uint32, id *uint32) []uint32 {
	if id == nil {
		return all
	}
	return append(all, *id)
}

// containerID returns the id that a container's runtime has given it; empty: it is not reported, or is none that can
// be part of a directory's name.
func containerID(pod *corev1.Pod, name string) string {
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if _, id, ok := strings.Cut(s.ContainerID, "://"); ok && s.Name == name && strings.Trim(id, "0123456789abcdef") == "" {
			return id
		}
	}
	return ""
}

func hasVariable(c *corev1.Container, name, value string) bool {
	return slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == name && e.Value == value })
}

// userOf returns the user and group of a container; nil where the image decides.
func userOf(pod *corev1.Pod, c *corev1.Container) (uid, gid *uint32) {
	if s := pod.Spec.SecurityContext; s != nil {
		uid, gid = userID(s.RunAsUser), userID(s.RunAsGroup)
	}
	if s := c.SecurityContext; s != nil {
		uid, gid = cmp.Or(userID(s.RunAsUser), uid), cmp.Or(userID(s.RunAsGroup), gid)
	}
	return uid, gid
}

func userID(id *int64) *uint32 {
	if id == nil || *id < 0 || *id > 1<<32-2 {
		return nil
	}
	short := uint32(*id)
	return &short
}

// probedPorts returns the ports at the pod's address that the kubelet connects to.
func probedPorts(c *corev1.Container) (all []uint16) {
	for _, probe := range []*corev1.Probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
		if probe == nil {
			continue
		}
		var port int
		switch {
		case probe.HTTPGet != nil && probe.HTTPGet.Host == "":
			port = portOf(c, probe.HTTPGet.Port)
		case probe.TCPSocket != nil && probe.TCPSocket.Host == "":
			port = portOf(c, probe.TCPSocket.Port)
		case probe.GRPC != nil:
			port = int(probe.GRPC.Port)
		}
		if port > 0 && port < 1<<16 {
			all = append(all, uint16(port))
		}
	}
	return all
}

// portOf returns a port by its number or its name in the container; 0 if it has no such port.
func portOf(c *corev1.Container, port intstr.IntOrString) int {
	if port.Type == intstr.Int {
		return port.IntValue()
	}
	for _, p := range c.Ports {
		if p.Name == port.StrVal {
			return int(p.ContainerPort)
		}
	}
	return 0
}

// Missing returns why the pod has no proxy; empty if it has one.
func (p *Proxy) Missing() string {
	if p.Found {
		return ""
	}
	return fmt.Sprintf("no container is a proxy: none is named %s or has runAsUser: %d", istioProxy, defaultProxyUser)
}
