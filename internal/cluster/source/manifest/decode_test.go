// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"
)

var apiTypes = map[string]reflect.Type{
	"core.v1.Service":                   reflect.TypeFor[corev1.Service](),
	"discovery.k8s.io.v1.EndpointSlice": reflect.TypeFor[discoveryv1.EndpointSlice](),
	"core.v1.Node":                      reflect.TypeFor[corev1.Node](),
	"core.v1.Pod":                       reflect.TypeFor[corev1.Pod](),
	"networking.k8s.io.v1.ServiceCIDR":  reflect.TypeFor[networkingv1.ServiceCIDR](),
}

// The decoder decodes an object with every field set, as written by Kubernetes, like the standard decoder.
func TestDecodeEveryField(t *testing.T) {
	module, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/api").Output()
	if err != nil {
		t.Fatalf("no module k8s.io/api with its test data: %v", err)
	}
	for name, typ := range apiTypes {
		for _, ext := range []string{".yaml", ".json"} {
			t.Run(name+ext, func(t *testing.T) {
				data, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(module)), "testdata", "HEAD", name+ext))
				if err != nil {
					t.Fatal(err)
				}
				var left atomic.Int64
				trees, bad := parseYAML(document{data, 1}, &left)
				if ext == ".json" {
					trees, bad = parseJSON(data)
				}
				if bad != nil || len(trees) != 1 {
					t.Fatalf("%d trees, %v", len(trees), bad)
				}
				got, want := reflect.New(typ), reflect.New(typ)
				d := &decoder{complaints: new(complaints), left: &left}
				d.decode(trees[0], got.Interface())
				if !d.ok() {
					t.Fatal(d.list)
				}
				if err := yaml.UnmarshalStrict(data, want.Interface()); err != nil {
					t.Fatal(err)
				}
				// Compare as JSON, because quantities remember how they were written.
				g, _ := json.MarshalIndent(got.Interface(), "", " ")
				w, _ := json.MarshalIndent(want.Interface(), "", " ")
				if diff := cmp.Diff(string(w), string(g)); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				if len(g) < 1000 {
					t.Errorf("only %d bytes compared", len(g))
				}
			})
		}
	}
}
