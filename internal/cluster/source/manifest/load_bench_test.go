// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"

	"sigs.k8s.io/yaml"
)

const (
	benchServices  = 5000
	benchEndpoints = 10
)

// benchObjects returns a Service and its EndpointSlice, as printed by an API server.
func benchObjects(i int) (service, slice string) {
	service = fmt.Sprintf(`apiVersion: v1
kind: Service
metadata:
  name: s%d
  namespace: default
spec:
  type: ClusterIP
  clusterIP: 10.96.%d.%d
  clusterIPs:
  - 10.96.%d.%d
  ipFamilies:
  - IPv4
  ports:
  - name: http
    port: 80
    protocol: TCP
    targetPort: 8080
`, i, i/250, i%250+1, i/250, i%250+1)
	var b bytes.Buffer
	fmt.Fprintf(&b, `apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: s%d
  namespace: default
  labels:
    kubernetes.io/service-name: s%d
addressType: IPv4
ports:
- name: http
  port: 8080
  protocol: TCP
endpoints:
`, i, i)
	for j := range benchEndpoints {
		fmt.Fprintf(&b, `- addresses:
  - 10.%d.%d.%d
  conditions:
    ready: true
    serving: true
    terminating: false
  nodeName: node-%d
  zone: z1
  targetRef:
    kind: Pod
    name: p%d
    namespace: default
`, 10+j, i/250, i%250+1, j, j)
	}
	return service, b.String()
}

// BenchmarkLoad reads 5,000 Services with 10 endpoints each, distributed over files in different ways.
func BenchmarkLoad(b *testing.B) {
	var documents bytes.Buffer
	var items []json.RawMessage
	files := make(map[string]string)
	for i := range benchServices {
		service, slice := benchObjects(i)
		both := service + "---\n" + slice
		documents.WriteString("---\n" + both)
		files[fmt.Sprintf("s%d.yaml", i)] = both
		for _, object := range []string{service, slice} {
			item, err := yaml.YAMLToJSON([]byte(object))
			if err != nil {
				b.Fatal(err)
			}
			items = append(items, item)
		}
	}
	list, err := json.MarshalIndent(map[string]any{"apiVersion": "v1", "kind": "List", "items": items}, "", "    ")
	if err != nil {
		b.Fatal(err)
	}
	yamlList, err := yaml.JSONToYAML(list)
	if err != nil {
		b.Fatal(err)
	}
	for _, bench := range []struct {
		name  string
		files map[string]string
	}{
		{"documents", map[string]string{"all.yaml": documents.String()}},
		{"YAML List", map[string]string{"all.yaml": string(yamlList)}},
		{"JSON List", map[string]string{"all.json": string(list)}},
		{"5000 files", files},
	} {
		b.Run(bench.name, func(b *testing.B) {
			dir := folder(b, bench.files)
			for b.Loop() {
				if st, err := New(dir).Load(); err != nil || len(st.Objects) != 2*benchServices {
					b.Fatalf("%d objects, %v", len(st.Objects), err)
				}
			}
		})
		b.Run(bench.name+" again", func(b *testing.B) {
			s := New(folder(b, bench.files))
			if _, err := s.Load(); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if _, err := s.Load(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
