// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"beeline.io/beeline/internal/cluster/source"
)

// web is a valid Service; tests rely on its line numbers.
const web = `apiVersion: v1
kind: Service
metadata:
  name: web
spec:
  clusterIP: 10.96.0.10
  ports:
  - port: 80
`

// webSlice is a valid EndpointSlice of web.
const webSlice = `apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: web-1
  labels:
    kubernetes.io/service-name: web
addressType: IPv4
ports:
- port: 8080
endpoints:
- addresses:
  - 10.10.1.11
`

// named is web with another name and address.
func named(name, clusterIP string) string {
	return strings.NewReplacer("name: web", "name: "+name, "10.96.0.10", clusterIP).Replace(web)
}

// edit replaces old in s, which must contain it.
func edit(t testing.TB, s, old, new string) string {
	t.Helper()
	if !strings.Contains(s, old) {
		t.Fatalf("no %q to replace in:\n%s", old, s)
	}
	return strings.Replace(s, old, new, 1)
}

// write replaces a file atomically.
func write(t testing.TB, dir, name, data string) {
	t.Helper()
	hidden := filepath.Join(dir, "."+name+".new")
	if err := os.WriteFile(hidden, []byte(data), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(hidden, filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
}

// folder creates a directory of files.
func folder(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, data := range files {
		write(t, dir, name, data)
	}
	return dir
}

// problemsOf loads a directory with errors or warnings.
func problemsOf(t testing.TB, path string) source.Problems {
	t.Helper()
	st, err := New(path).Load()
	var problems source.Problems
	if err != nil && !errors.As(err, &problems) {
		t.Fatalf("error of type %T: %v", err, err)
	}
	return append(problems, st.Warnings...)
}

// mustLoad loads a valid directory without warnings.
func mustLoad(t testing.TB, path string) State {
	t.Helper()
	st, err := New(path).Load()
	if err != nil {
		t.Fatal(err)
	}
	if len(st.Warnings) > 0 {
		t.Fatal(st.Warnings)
	}
	return st
}

func refs(st State) []string {
	names := []string{}
	for _, o := range st.Objects {
		names = append(names, o.Ref().String())
	}
	return names
}
