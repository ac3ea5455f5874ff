// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// SelectedError is returned if a DaemonSet selects a node, and so would start its pod there again.
type SelectedError struct {
	DaemonSet, Node string
	// Labels are those of the node that the DaemonSet's node selector has, without those of the kubelet.
	Labels []string
}

func (e *SelectedError) Error() string {
	what := fmt.Sprintf("DaemonSet %s selects node %s, and would start the agent there again: ", e.DaemonSet, e.Node)
	if len(e.Labels) == 0 {
		return what + "delete it, or give it a node selector that the node does not match"
	}
	return what + fmt.Sprintf("first remove the label, kubectl label node %s %s-", e.Node, e.Labels[0])
}

// NotSelected returns nil if a DaemonSet, NAMESPACE/NAME, does not exist or does not select a node, or if the node
// does not exist. Without a kubeconfig it asks as a pod does.
//
// Errors: *SelectedError; those of the configuration and of the API.
func NotSelected(ctx context.Context, kubeconfig, daemonSet, node string) error {
	namespace, name, ok := strings.Cut(daemonSet, "/")
	if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return fmt.Errorf("--daemonset %q: give NAMESPACE/NAME", daemonSet)
	}
	config, err := restConfig(kubeconfig)
	if err != nil {
		return err
	}
	client, err := jsonClient(config)
	if err != nil {
		return err
	}
	var set struct {
		Spec struct{ Template corev1.PodTemplateSpec }
	}
	var object metav1.PartialObjectMetadata
	for path, into := range map[string]any{
		"/apis/apps/v1/namespaces/" + namespace + "/daemonsets/" + name: &set,
		"/api/v1/nodes/" + node: &object,
	} {
		text, err := client.Get().AbsPath(path).Do(ctx).Raw()
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err == nil {
			err = json.Unmarshal(text, into)
		}
		if err != nil {
			return fmt.Errorf("whether DaemonSet %s selects node %s is not known: %w", daemonSet, node, err)
		}
	}
	spec := &set.Spec.Template.Spec
	if !selectsNode(spec, node, object.Labels) {
		return nil
	}
	return &SelectedError{DaemonSet: daemonSet, Node: node, Labels: removableLabels(spec.NodeSelector)}
}

// removableLabels returns the keys of a node selector that are not labels of the kubelet, which it would restore.
func removableLabels(selector map[string]string) (keys []string) {
	for key := range selector {
		domain, _, _ := strings.Cut(key, "/")
		if !strings.HasSuffix(domain, "kubernetes.io") {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// selectsNode reports whether the node selector and the required node affinity of a pod match a node.
func selectsNode(spec *corev1.PodSpec, node string, of map[string]string) bool {
	if !labels.SelectorFromSet(spec.NodeSelector).Matches(labels.Set(of)) {
		return false
	}
	if spec.Affinity == nil || spec.Affinity.NodeAffinity == nil {
		return true
	}
	required := spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if required == nil {
		return true
	}
	return slices.ContainsFunc(required.NodeSelectorTerms, func(t corev1.NodeSelectorTerm) bool {
		if len(t.MatchExpressions)+len(t.MatchFields) == 0 {
			return false // matches no node
		}
		return matches(t.MatchExpressions, of) && matches(t.MatchFields, map[string]string{"metadata.name": node})
	})
}

var selectionOperators = map[corev1.NodeSelectorOperator]selection.Operator{
	corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn,
	corev1.NodeSelectorOpExists: selection.Exists, corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist,
	corev1.NodeSelectorOpGt: selection.GreaterThan, corev1.NodeSelectorOpLt: selection.LessThan,
}

// matches reports whether all requirements match. One that is not valid matches nothing, as for the scheduler.
func matches(all []corev1.NodeSelectorRequirement, of map[string]string) bool {
	for _, r := range all {
		requirement, err := labels.NewRequirement(r.Key, selectionOperators[r.Operator], r.Values)
		if err != nil || !requirement.Matches(labels.Set(of)) {
			return false
		}
	}
	return true
}
