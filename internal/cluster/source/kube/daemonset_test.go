// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// A DaemonSet selects a node by its node selector and its required node affinity. The error names the label to remove,
// which is none of the kubelet's.
func TestSelectsNode(t *testing.T) {
	terms := func(all ...corev1.NodeSelectorTerm) *corev1.Affinity {
		return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: all},
		}}
	}
	expression := func(key string, operator corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: operator, Values: values}}}
	}
	named := func(name string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{name}}}}
	}
	labelled := map[string]string{"kubernetes.io/os": "linux", "beeline": "true", "cores": "8"}
	for name, c := range map[string]struct {
		selector map[string]string
		affinity *corev1.Affinity
		want     string // the remedy; empty: not selected
	}{
		"all nodes":                       {nil, nil, "delete it"},
		"all nodes with Linux":            {map[string]string{"kubernetes.io/os": "linux"}, nil, "delete it"},
		"nodes with Windows":              {map[string]string{"kubernetes.io/os": "windows"}, nil, ""},
		"nodes with the label":            {map[string]string{"kubernetes.io/os": "linux", "beeline": "true"}, nil, "kubectl label node n1 beeline-"},
		"nodes with another value":        {map[string]string{"beeline": "soon"}, nil, ""},
		"an affinity that matches":        {nil, terms(expression("beeline", corev1.NodeSelectorOpIn, "true", "1")), "delete it"},
		"an affinity that excludes it":    {nil, terms(expression("beeline", corev1.NodeSelectorOpNotIn, "true")), ""},
		"one of two terms":                {nil, terms(expression("gpu", corev1.NodeSelectorOpExists), expression("cores", corev1.NodeSelectorOpGt, "4")), "delete it"},
		"a selector, and no affinity":     {map[string]string{"beeline": "true"}, terms(expression("gpu", corev1.NodeSelectorOpExists)), ""},
		"a term without a requirement":    {nil, terms(corev1.NodeSelectorTerm{}), ""},
		"a requirement that is not valid": {nil, terms(expression("beeline", "Like", "t*")), ""},
		"its name":                        {nil, terms(named("n1")), "delete it"},
		"another name":                    {nil, terms(named("n2")), ""},
	} {
		spec := &corev1.PodSpec{NodeSelector: c.selector, Affinity: c.affinity}
		got := ""
		if selectsNode(spec, "n1", labelled) {
			got = (&SelectedError{DaemonSet: "kube-system/beeline", Node: "n1", Labels: removableLabels(c.selector)}).Error()
		}
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
