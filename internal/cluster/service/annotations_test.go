// SPDX-License-Identifier: Apache-2.0

package service

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// allAnnotations holds every annotation.
var allAnnotations = map[string]string{
	AnnotationAlgorithm: "maglev", AnnotationDSR: "ipip", AnnotationDSRHybrid: "true", AnnotationStateless: "true",
	AnnotationWeight: "7", AnnotationSocketShortcut: "off", AnnotationHealthCheck: "tcp",
}

// TestWithoutAnnotations: the objects equal those without annotations, and the input is not modified.
func TestWithoutAnnotations(t *testing.T) {
	objects := func(annotations map[string]string) (all []Object) {
		meta := metav1.ObjectMeta{Namespace: "default", Name: "web", Annotations: annotations}
		s, err := ConvertService(&corev1.Service{ObjectMeta: meta})
		if err != nil {
			t.Fatal(err)
		}
		slice, err := ConvertEndpointSlice(&discoveryv1.EndpointSlice{ObjectMeta: meta, AddressType: "IPv4",
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}, {Addresses: []string{"10.0.0.2"}}}})
		if err != nil {
			t.Fatal(err)
		}
		pod, err := ConvertPod(&corev1.Pod{ObjectMeta: meta})
		if err != nil {
			t.Fatal(err)
		}
		return append(all, s, slice, pod)
	}
	changes := func(objects []Object) (all []Change) {
		for _, o := range objects {
			all = append(all, Change{Ref: o.Ref(), Object: o})
		}
		return append(all, Change{Ref: Ref{KindService, "default", "gone"}})
	}
	given := changes(objects(allAnnotations))
	if cmp.Equal(given, changes(objects(nil)), compareValues) {
		t.Fatal("the annotations have no effect, so this test proves nothing")
	}
	if diff := cmp.Diff(changes(objects(nil)), WithoutAnnotations(given), compareValues); diff != "" {
		t.Errorf("without annotations (-) and with ignored ones (+):\n%s", diff)
	}
	if diff := cmp.Diff(changes(objects(allAnnotations)), given, compareValues); diff != "" {
		t.Errorf("before (-) and after (+):\n%s", diff)
	}
}
