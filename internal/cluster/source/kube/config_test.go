// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Errors in a kubeconfig name the file and what to change.
func TestBadKubeconfig(t *testing.T) {
	good, err := os.ReadFile(kubeconfig(t, "https://192.0.2.1:6443"))
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ name, old, new, want string }{
		{"no YAML", "clusters", "\tclusters", "not a kubeconfig"},
		{"another kind", "kind: Config", "kind: Service", "not a kubeconfig"},
		{"empty", string(good), "", "no current-context"},
		{"no current-context", "current-context: x", "", `choose one with "kubectl config use-context"`},
		{"unknown current-context", "current-context: x", "current-context: z", `the current-context "z" does not exist in the file`},
		{"unknown cluster", "cluster: c, user", "cluster: d, user", `the cluster "d" of context "x" has no server`},
		{"no server", `server: "https://192.0.2.1:6443"`, "", `the cluster "c" of context "x" has no server`},
		{"server is no URL", "https://192.0.2.1:6443", "https://[:6443", "[:6443"},
		{"unknown user", "user: u}", "user: v}", `the user "v" of context "x" does not exist in the file`},
		{"certificate that is missing", "server:", "certificate-authority: missing.pem, server:", "missing.pem"},
	} {
		text := strings.Replace(string(good), test.old, test.new, 1)
		if text == string(good) {
			t.Fatalf("%s: nothing to replace", test.name)
		}
		path := filepath.Join(t.TempDir(), "config")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := New(Options{Kubeconfig: path, NodeName: "n", Log: slog.Default()})
		if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), path) && !strings.Contains(err.Error(), "API server") {
			t.Errorf("%s: %v\nwant %s with %s in it", test.name, err, path, test.want)
		}
	}
	missing := filepath.Join(t.TempDir(), "missing")
	if _, err := New(Options{Kubeconfig: missing, Log: slog.Default()}); err == nil || !strings.Contains(err.Error(), missing+": no such file") {
		t.Error(err)
	}
}

// Outside a pod, and in one without a service account, the error says so.
func TestInCluster(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if InCluster() {
		t.Error("InCluster without the environment")
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "192.0.2.1")
	t.Setenv("KUBERNETES_SERVICE_PORT", "443")
	if !InCluster() {
		t.Error("not InCluster with the environment")
	}
	if _, err := os.Stat("/var/run/secrets/kubernetes.io/serviceaccount/token"); err == nil {
		t.Skip("this machine has a service account")
	}
	if _, err := New(Options{Log: slog.Default()}); err == nil || !strings.Contains(err.Error(), "--kubeconfig") {
		t.Error(err)
	}
}
