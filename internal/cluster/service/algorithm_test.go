// SPDX-License-Identifier: Apache-2.0

package service

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func annotated(algorithm string) serviceOption {
	return func(s *corev1.Service) { s.Annotations = map[string]string{AnnotationAlgorithm: algorithm} }
}

// A Service uses the algorithm of its annotation, or else the node's. The plan has one algorithm for all of its
// sets, and changing it changes the plan.
func TestAlgorithm(t *testing.T) {
	for _, test := range []struct {
		node       Algorithm
		annotation string // "-": none
		size       uint32
	}{
		{"", "-", 0}, {Random, "-", 0}, {Maglev, "-", 1021},
		{Random, "maglev", 1021}, {Maglev, "random", 0}, {Maglev, "maglev", 1021},
	} {
		config := DefaultConfig()
		config.NodeName, config.Algorithm, config.TableSize = "here", test.node, 1021
		table := NewCluster(config)
		svc := service("web")
		if test.annotation != "-" {
			svc = service("web", annotated(test.annotation))
		}
		table.Apply(changes(svc, endpoints("a", "b")))
		if got := table.Plan(svc.Ref()).TableSize; got != test.size {
			t.Errorf("node %q, annotation %s: tables of %d slots, want %d", test.node, test.annotation, got, test.size)
		}
		delta := table.Apply(changes(service("web", annotated("maglev"))))
		if changed := delta.Plans[svc.Ref()] != nil; changed != (test.size == 0) {
			t.Errorf("node %q, annotation %s: with maglev the plan changes: %v", test.node, test.annotation, changed)
		}
	}
}

// A Service that loses an address to another one keeps its algorithm.
func TestAlgorithmOfRivals(t *testing.T) {
	config := DefaultConfig()
	config.TableSize = 1021
	table := NewCluster(config)
	external := func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"203.0.113.7"} }
	table.Apply(changes(service("first", created(1), external), endpoints("a")))
	rival := service("second", created(2), external, clusterIP("10.0.0.77"), annotated("maglev"))
	table.Apply(changes(rival))
	if plan := table.Plan(rival.Ref()); len(plan.Problems) == 0 || plan.TableSize != 1021 {
		t.Errorf("problems %q, tables of %d slots", plan.Problems, plan.TableSize)
	}
}

func TestAlgorithmAnnotation(t *testing.T) {
	for _, value := range []string{"", "Maglev", "source-hash", "maglev "} {
		s, err := ConvertService(v1Service("web", annotated(value)))
		checkErrors(t, err, "metadata.annotations[beeline.io/algorithm] … random or maglev")
		if s.Algorithm != "" {
			t.Errorf("%q is %q", value, s.Algorithm)
		}
	}
}
