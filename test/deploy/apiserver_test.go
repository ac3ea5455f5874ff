// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"context"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"beeline.io/beeline/test/controlplane"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// resources are the API's names of the kinds in deploy/kubernetes.
var resources = map[string]string{
	"ServiceAccount": "serviceaccounts", "ConfigMap": "configmaps", "DaemonSet": "daemonsets", "Pod": "pods", "Node": "nodes", "Job": "jobs",
	"Role": "roles", "RoleBinding": "rolebindings", "ClusterRole": "clusterroles", "ClusterRoleBinding": "clusterrolebindings",
	"Namespace": "namespaces", "PodTemplate": "podtemplates", "MutatingAdmissionPolicy": "mutatingadmissionpolicies",
	"MutatingAdmissionPolicyBinding": "mutatingadmissionpolicybindings", "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
	"ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings", "MutatingWebhookConfiguration": "mutatingwebhookconfigurations",
}

// server is a real API server on a lab, with the lab's Nodes, to which deploy/kubernetes was applied.
type server struct {
	*controlplane.ControlPlane
	client    dynamic.Interface
	manifests []*unstructured.Unstructured
	warnings  *warnings
}

// warnings collects the warnings of the API server's answers.
type warnings struct {
	mu   sync.Mutex
	text []string
}

func (w *warnings) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text = append(w.text, text)
}

func (w *warnings) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer func() { w.text = nil }()
	return w.text
}

func startServer(t *testing.T, l *lab.Lab) *server {
	t.Helper()
	program, err := controlplane.Program()
	must(t, err)
	c, err := controlplane.Start(t.Context(), l, program)
	must(t, err)
	t.Cleanup(func() { must(t, c.Stop()) })
	must(t, c.Create(t.Context(), node.Cluster(l)...))
	s := &server{ControlPlane: c, manifests: manifests(t, testImage, c.Address().String()), warnings: &warnings{}}
	config := c.ClientConfig()
	config.WarningHandler, config.QPS = s.warnings, -1
	s.client, err = dynamic.NewForConfig(config)
	must(t, err)
	return s
}

func (s *server) resource(o *unstructured.Unstructured) dynamic.ResourceInterface {
	version := schema.FromAPIVersionAndKind(o.GetAPIVersion(), o.GetKind()).GroupVersion()
	all := s.client.Resource(version.WithResource(resources[o.GetKind()]))
	if o.GetNamespace() == "" {
		return all
	}
	return all.Namespace(o.GetNamespace())
}

// apply is `kubectl apply --server-side --validate=strict`, with --dry-run=server if dryRun is set.
func (s *server) apply(ctx context.Context, o *unstructured.Unstructured, dryRun bool) (*unstructured.Unstructured, error) {
	options := metav1.PatchOptions{FieldManager: "deploy-test", FieldValidation: metav1.FieldValidationStrict}
	if dryRun {
		options.DryRun = []string{metav1.DryRunAll}
	}
	text, err := o.MarshalJSON()
	if err != nil {
		return nil, err
	}
	return s.resource(o).Patch(ctx, o.GetName(), "application/apply-patch+yaml", text, options)
}

// token is a new token of a service account in kube-system.
func (s *server) token(t *testing.T, account string) string {
	t.Helper()
	request := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": map[string]any{"name": account},
	}}
	answer, err := s.resource(newObject("v1", "ServiceAccount", account)).Create(t.Context(), request, metav1.CreateOptions{}, "token")
	must(t, err)
	token, _, err := unstructured.NestedString(answer.Object, "status", "token")
	must(t, err)
	return token
}

// newObject is an object, in kube-system unless it is a cluster's.
func newObject(version, kind, name string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetAPIVersion(version)
	o.SetKind(kind)
	o.SetName(name)
	if !strings.HasPrefix(kind, "Cluster") {
		o.SetNamespace("kube-system")
	}
	return o
}
