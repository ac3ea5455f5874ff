// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"beeline.io/beeline/internal/cluster/sidecar"
)

// TaintToBeDeleted is the key of the taint that the cluster autoscaler puts on a node before it removes it; its
// value and effect do not matter (R35). No library of Kubernetes exports it.
const TaintToBeDeleted = "ToBeDeletedByClusterAutoscaler"

// ConvertNode extracts the fields that the rules use from a v1 Node.
func ConvertNode(in *corev1.Node) (*Node, error) {
	var errs fieldErrors
	n := &Node{Name: in.Name, Zone: in.Labels[corev1.LabelTopologyZone], Deleting: in.DeletionTimestamp != nil, Unknown: unknownAnnotations(KindNode, in.Annotations)}
	n.ToBeDeleted = slices.ContainsFunc(in.Spec.Taints, func(t corev1.Taint) bool { return t.Key == TaintToBeDeleted })
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for i, addr := range in.Status.Addresses {
			if addr.Type != kind {
				continue
			}
			if a, ok := errs.addr(fmt.Sprintf("status.addresses[%d].address", i), addr.Address); ok {
				n.Addresses = append(n.Addresses, a)
			}
		}
	}
	cidrs, field := in.Spec.PodCIDRs, "spec.podCIDRs"
	if len(cidrs) == 0 {
		cidrs, field = []string{in.Spec.PodCIDR}, "spec.podCIDR"
	}
	n.PodCIDRs = errs.prefixes(field, cidrs)
	return n, errs.join()
}

// ConvertPod extracts the fields that the rules use from a v1 Pod (R33, OptOuts), and the proxy in it. Like the
// kubelet, it uses hostPorts of spec.containers only, not of init containers.
func ConvertPod(in *corev1.Pod) (*Pod, error) {
	var errs fieldErrors
	p := &Pod{
		Namespace:   in.Namespace,
		Name:        in.Name,
		UID:         string(in.UID),
		Created:     in.CreationTimestamp.Time,
		Node:        in.Spec.NodeName,
		HostNetwork: in.Spec.HostNetwork,
		Finished:    in.Status.Phase == corev1.PodSucceeded || in.Status.Phase == corev1.PodFailed,
		Deleting:    in.DeletionTimestamp != nil,
		Pending:     in.Status.Phase == corev1.PodPending,
		Shortcut:    shortcut(in.Annotations),
		Unknown:     unknownAnnotations(KindPod, in.Annotations),
		Proxy:       sidecar.ProxyOf(in),
	}
	if in.Spec.RuntimeClassName != nil {
		p.RuntimeClass = *in.Spec.RuntimeClassName
	}
	p.StaticUID = staticUID(in)
	ips, field := in.Status.PodIPs, "status.podIPs"
	if len(ips) == 0 {
		ips, field = []corev1.PodIP{{IP: in.Status.PodIP}}, "status.podIP"
	}
	for i, ip := range ips {
		if a, ok := errs.addr(fmt.Sprintf("%s[%d]", field, i), ip.IP); ok {
			p.IPs = append(p.IPs, a)
		}
	}
	for i := range in.Spec.Containers {
		for j, port := range in.Spec.Containers[i].Ports {
			if port.HostPort == 0 {
				continue
			}
			field := fmt.Sprintf("spec.containers[%d].ports[%d]", i, j)
			if hp, ok := podPort(&errs, field, port); ok {
				p.HostPorts = append(p.HostPorts, hp)
			}
		}
	}
	return p, errs.join()
}

// staticUID returns the UID of a mirror pod's static pod, or "". Anyone who may create Pods can write the
// annotation, and could claim another pod's UID. So it must be a hexadecimal number, the kubelet's hash, unlike
// UIDs from the API server, which have hyphens; and the mirror pod's owner must be its Node, as the kubelet
// sets it.
func staticUID(in *corev1.Pod) string {
	uid := in.Annotations[annotationConfigHash]
	_, mirror := in.Annotations[corev1.MirrorPodAnnotationKey]
	ofNode := slices.ContainsFunc(in.OwnerReferences, func(o metav1.OwnerReference) bool {
		return o.Kind == string(KindNode) && o.Name == in.Spec.NodeName
	})
	if !mirror || !ofNode || strings.Trim(uid, "0123456789abcdef") != "" {
		return ""
	}
	return uid
}

func podPort(errs *fieldErrors, field string, in corev1.ContainerPort) (PodPort, bool) {
	hostPort := errs.port(field+".hostPort", in.HostPort)
	protocol, known := errs.protocol(field+".protocol", string(in.Protocol))
	if in.ContainerPort < 1 || in.ContainerPort > 65535 {
		errs.add(field+".containerPort", in.ContainerPort, "a port from 1 to 65535")
		return PodPort{}, false
	}
	p := PodPort{HostPort: hostPort, ContainerPort: uint16(in.ContainerPort), Protocol: protocol}
	if in.HostIP != "" {
		a, ok := parseAddr(in.HostIP)
		if !ok || a.IsMulticast() {
			errs.add(field+".hostIP", in.HostIP, "a unicast IPv4 or IPv6 address")
			return PodPort{}, false
		}
		if !a.IsUnspecified() {
			p.HostIP = a
		}
	}
	return p, known && hostPort != 0
}

// ConvertServiceCIDR extracts the fields that the rules use from a ServiceCIDR (R21).
func ConvertServiceCIDR(in *networkingv1.ServiceCIDR) (*ServiceCIDR, error) {
	var errs fieldErrors
	c := &ServiceCIDR{Name: in.Name, CIDRs: errs.prefixes("spec.cidrs", in.Spec.CIDRs)}
	return c, errs.join()
}
