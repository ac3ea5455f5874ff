// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Each annotation beeline.io/... that its object cannot have is reported once, with the name that it probably means or
// the kind of object that has it. Those of others, and those that an object can have, are not.
func TestUnknownAnnotations(t *testing.T) {
	for _, c := range []struct {
		kind Kind
		name string
		want string // empty: nothing
	}{
		{KindEndpointSlice, "beeline.io/weigth", `there is no such annotation, did you mean "beeline.io/weight"?`},
		{KindService, "beeline.io/algoritm", `there is no such annotation, did you mean "beeline.io/algorithm"?`},
		{KindService, "beeline.io/nonsense", "there is no such annotation: remove it"},
		{KindService, "beeline.io/weight", "objects of kind Service do not have it: annotate the EndpointSlice instead"},
		{KindNode, "beeline.io/weight", "objects of kind Node do not have it: annotate the EndpointSlice instead"},
		{KindEndpointSlice, "beeline.io/dsr", "objects of kind EndpointSlice do not have it: annotate the Service instead"},
		{KindPod, "beeline.io/health-check", "objects of kind Pod do not have it: annotate the Service instead"},
		{KindService, "beeline.io/socket-shortcut", "objects of kind Service do not have it: annotate the Namespace or the Pod or the RuntimeClass instead"},
		{KindNamespace, "beeline.io/socketshortcut", `there is no such annotation, did you mean "beeline.io/socket-shortcut"?`},
		{KindRuntimeClass, "beeline.io/socket-shortcuts", `there is no such annotation, did you mean "beeline.io/socket-shortcut"?`},
		{KindEndpointSlice, "beeline.oi/weight", `there is no such annotation, did you mean "beeline.io/weight"?`},
		{KindEndpointSlice, "beeline/weight", `there is no such annotation, did you mean "beeline.io/weight"?`},
		{KindEndpointSlice, "beelineio/weight", `there is no such annotation, did you mean "beeline.io/weight"?`},
		{KindEndpointSlice, "beline.io/weigth", `there is no such annotation, did you mean "beeline.io/weight"?`},
		{KindService, "Beeline.io/health-check-path", `there is no such annotation, did you mean "beeline.io/health-check-path"?`},
		{KindService, "lb.beeline.io/dsr", `there is no such annotation, did you mean "beeline.io/dsr"?`},
		{KindService, "beeline.oi/weight", `there is no such annotation, did you mean "beeline.io/weight"? But objects of kind Service do not have it: annotate the EndpointSlice instead`},
		{KindEndpointSlice, "beeline.oi/owner", ""}, // another's
		{KindEndpointSlice, "pipeline.io/weight", ""},
		{KindEndpointSlice, "beehive.example/weight", ""},
		{KindEndpointSlice, "weight", ""},
		{KindEndpointSlice, "beeline.io/weight", ""},
		{KindService, "beeline.io/algorithm", ""},
		{KindService, "beeline.io/healthcheck", ""}, // ParseHealthCheck reports it
		{KindPod, "beeline.io/socket-shortcut", ""},
		{KindService, "example.com/weigth", ""},
		{KindService, "beeline.io", ""},
	} {
		u := NewUnknownAnnotations()
		object := annotatedWith(t, c.kind, "a", c.name)
		if touched := u.Apply([]Change{{Ref: object.Ref(), Object: object}}); touched != (c.want != "") {
			t.Errorf("%s %s: the state has changed: %v", c.kind, c.name, touched)
		}
		var want []string
		if c.want != "" {
			want = []string{object.Ref().String() + ": annotation " + c.name + ": " + c.want}
		}
		if got := texts(u.Problems()); !slices.Equal(got, want) {
			t.Errorf("%s %s: %q, want %q", c.kind, c.name, got, want)
		}
		if touched := u.Apply([]Change{{Ref: object.Ref()}}); touched != (c.want != "") || len(u.Problems()) > 0 {
			t.Errorf("%s %s: after its end %q, and the state has changed: %v", c.kind, c.name, texts(u.Problems()), touched)
		}
	}
}

// A wrong template of thousands of pods is reported for some of them, with the number of the others.
func TestUnknownAnnotationsOfManyObjects(t *testing.T) {
	u, n := NewUnknownAnnotations(), 3000
	for i := range n {
		p := annotatedWith(t, KindPod, fmt.Sprintf("pod-%04d", i), "beeline.io/socketshortcut")
		u.Apply([]Change{{Ref: p.Ref(), Object: p}})
	}
	got := texts(u.Problems())
	if len(got) != maxUnknown+1 || !strings.Contains(got[maxUnknown], fmt.Sprintf("%d more objects with", n-maxUnknown)) {
		t.Errorf("%d problems, the last one %q", len(got), got[len(got)-1])
	}
}

func texts(all []ObjectProblem) (some []string) {
	for _, p := range all {
		some = append(some, p.Object.String()+": "+p.Problem.Message)
	}
	return some
}

// annotatedWith is an object with an annotation.
func annotatedWith(t *testing.T, kind Kind, name, annotation string) Object {
	t.Helper()
	meta := metav1.ObjectMeta{Namespace: "shop", Name: name, Annotations: map[string]string{annotation: "0"}}
	global := meta
	global.Namespace = ""
	var object Object
	var err error
	switch kind {
	case KindService:
		object, err = ConvertService(&corev1.Service{ObjectMeta: meta})
	case KindEndpointSlice:
		object, err = ConvertEndpointSlice(&discoveryv1.EndpointSlice{ObjectMeta: meta, AddressType: "IPv4"})
	case KindPod:
		object, err = ConvertPod(&corev1.Pod{ObjectMeta: meta})
	case KindNode:
		object, err = ConvertNode(&corev1.Node{ObjectMeta: global})
	case KindNamespace:
		object, err = ConvertNamespace(&corev1.Namespace{ObjectMeta: global})
	case KindRuntimeClass:
		object, err = ConvertRuntimeClass(&nodev1.RuntimeClass{ObjectMeta: global})
	default:
		t.Fatalf("no %s has annotations", kind)
	}
	if err != nil && !strings.Contains(err.Error(), annotation) { // the value may be invalid
		t.Fatal(err)
	}
	return object
}
