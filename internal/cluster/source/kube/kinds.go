// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"beeline.io/beeline/internal/cluster/service"
)

// kind is how to follow the objects of one kind.
type kind struct {
	name     service.Kind
	resource schema.GroupVersionResource
	// labels and fields select on the server. An object that no longer matches arrives as a deletion.
	labels, fields string
	// fieldsMatter means that without the field selector too many objects would arrive. Other kinds omit
	// the selector if the server does not support it.
	fieldsMatter bool
	// convert returns nil for an object that is ignored.
	convert func(runtime.Object) (service.Object, error)
	// lost is what does not work without this kind; empty if nothing works.
	lost string
}

const (
	noProxyName = "!" + service.LabelServiceProxyName
	notHeadless = "!" + corev1.IsHeadlessService

	optOutsLost = "annotations " + service.AnnotationSocketShortcut + " there have no effect"
)

// kindsFor returns the kinds, with selectors for what a node needs.
func kindsFor(node, proxyName string) []kind {
	services := noProxyName
	if proxyName != "" {
		// A selector cannot express "no label or this value".
		services = ""
	}
	return []kind{{
		name: service.KindService, resource: corev1.SchemeGroupVersion.WithResource("services"),
		// kube-proxy 1.36 uses the same selector; Kubernetes supports the field since 1.31.
		labels: services, fields: fields.OneTermNotEqualSelector("spec.clusterIP", corev1.ClusterIPNone).String(),
		convert: wanted(service.ConvertService, func(s *service.Service) bool { return countsFor(s, proxyName) }),
	}, {
		name: service.KindEndpointSlice, resource: discoveryv1.SchemeGroupVersion.WithResource("endpointslices"),
		labels:  notHeadless,
		convert: wanted(service.ConvertEndpointSlice, nil),
	}, {
		name: service.KindNode, resource: corev1.SchemeGroupVersion.WithResource("nodes"),
		convert: wanted(service.ConvertNode, nil),
	}, {
		name: service.KindPod, resource: corev1.SchemeGroupVersion.WithResource("pods"),
		fields: fields.OneTermEqualSelector("spec.nodeName", node).String(), fieldsMatter: true,
		convert: wanted(service.ConvertPod, nil),
	}, {
		name: service.KindServiceCIDR, resource: networkingv1.SchemeGroupVersion.WithResource("servicecidrs"),
		convert: wanted(service.ConvertServiceCIDR, nil),
		lost:    "connections to unused addresses of the Service ranges are not dropped",
	}, {
		name: service.KindNamespace, resource: corev1.SchemeGroupVersion.WithResource("namespaces"),
		convert: wanted(service.ConvertNamespace, nil), lost: optOutsLost,
	}, {
		name: service.KindRuntimeClass, resource: nodev1.SchemeGroupVersion.WithResource("runtimeclasses"),
		convert: wanted(service.ConvertRuntimeClass, nil), lost: optOutsLost,
	}}
}

// countsFor applies the selectors' conditions, for servers that did not (R1, R3).
func countsFor(s *service.Service, proxyName string) bool {
	return (!s.HasProxyName || proxyName != "" && s.ProxyName == proxyName) &&
		s.ClusterIPs[0] != corev1.ClusterIPNone
}

// wanted turns a typed converter into one for any object, which returns nil for objects that ok rejects.
func wanted[In runtime.Object, Out service.Object](convert func(In) (Out, error), ok func(Out) bool) func(runtime.Object) (service.Object, error) {
	return func(o runtime.Object) (service.Object, error) {
		in, is := o.(In)
		if !is {
			return nil, fmt.Errorf("the server sent a %T", o)
		}
		out, err := convert(in)
		if ok != nil && !ok(out) {
			return nil, nil
		}
		return out, err
	}
}
