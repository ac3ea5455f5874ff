// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// cleanupManifest is the object of build/beeline-cleanup.yaml, for a node as the documentation has it.
func cleanupManifest(t *testing.T, image, apiServer, node string) *unstructured.Unstructured {
	t.Helper()
	out, err := exec.Command(sources(t, "scripts/manifests"), "--cleanup", image, apiServer).Output()
	must(t, err)
	all := decode(t, bytes.ReplaceAll(out, []byte("node.invalid"), []byte(node)))
	if len(all) != 1 {
		t.Fatalf("build/beeline-cleanup.yaml has %d objects, want a Job", len(all))
	}
	return all[0]
}

// label gives the node's object a label, nil removes it.
func (n *labNode) label(key string, value any) {
	n.t.Helper()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]any{key: value}}})
	must(n.t, err)
	object := &unstructured.Unstructured{}
	object.SetAPIVersion("v1")
	object.SetKind("Node")
	_, err = n.server.resource(object).Patch(n.t.Context(), n.host.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	must(n.t, err)
}

// job prepares the pod of the Job as a container of its own, which is beside that of the DaemonSet, and returns what
// runs it.
func (n *labNode) job() (run func() (output string, err error)) {
	n.t.Helper()
	created, err := n.server.resource(newObject("batch/v1", "Job", "")).
		Create(n.t.Context(), cleanupManifest(n.t, testImage, n.server.Address().String(), n.host.Name), metav1.CreateOptions{FieldValidation: "Strict"})
	must(n.t, err)
	var job batchv1.Job
	text, err := created.MarshalJSON()
	must(n.t, err)
	must(n.t, json.Unmarshal(text, &job))
	if got := job.Spec.Template.Spec.NodeName; got != n.host.Name {
		n.t.Errorf("the Job runs on %q, want %s", got, n.host.Name)
	}
	other := *n
	other.bundle, other.id, other.pod = filepath.Join(n.host.Dir, "cleanup"), "beeline-cleanup", &job.Spec.Template.Spec
	other.token = n.server.token(n.t, job.Spec.Template.Spec.ServiceAccountName)
	other.unpack(n.t)
	return func() (string, error) {
		other.configure()
		return other.runc("run", "--bundle", other.bundle, other.id)
	}
}

// cleanup: the Job refuses while the DaemonSet selects the node, and names the label to remove. Then it stops an agent
// that still runs, and leaves nothing.
func (n *labNode) cleanup(t *testing.T) {
	if !n.agent.Running() {
		must(t, n.start())
	}
	run := n.job()
	n.label("kubernetes.io/os", "linux") // as the kubelet does
	n.label("beeline", "true")
	if out, err := run(); err == nil || !strings.Contains(out, fmt.Sprintf("kubectl label node %s beeline-\n", n.host.Name)) {
		t.Errorf("while the DaemonSet selects the node: %v: %s", err, out)
	}
	n.wantAnswer("a1", clusterIP(20), "b1")
	n.label("beeline", nil)
	out, err := run()
	if err != nil || !strings.Contains(out, "stopped the agent with pid ") || !strings.Contains(out, "nothing of Beeline is left") {
		t.Errorf("the Job: %v: %s", err, out)
	}
	must(t, n.agent.Wait())
	if _, err := n.requestFrom("a1", "tcp", clusterIP(20)); err == nil {
		t.Error("a ClusterIP is served after the cleanup")
	}
	n.wantNoPins()
}
