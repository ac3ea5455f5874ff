// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"sigs.k8s.io/yaml"
)

const (
	benchServices  = 5000
	benchEndpoints = 10
)

// benchObjects are a Service and its EndpointSlice, as an API server shows them.
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

func BenchmarkLoad(b *testing.B) {
	write := func(dir, name string, data []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			b.Fatal(err)
		}
	}
	var documents, list bytes.Buffer
	var items []json.RawMessage
	list.WriteString("apiVersion: v1\nkind: List\nitems:\n")
	folder := b.TempDir()
	for i := range benchServices {
		service, slice := benchObjects(i)
		for _, object := range []string{service, slice} {
			documents.WriteString("---\n" + object)
			list.WriteString("- " + string(bytes.ReplaceAll([]byte(object), []byte("\n"), []byte("\n  ")))[:len(object)+0])
			j, err := yaml.YAMLToJSON([]byte(object))
			if err != nil {
				b.Fatal(err)
			}
			items = append(items, j)
		}
		write(folder, fmt.Sprintf("s%d.yaml", i), []byte(service+"---\n"+slice))
	}
	_ = list
	jsonList, err := json.MarshalIndent(map[string]any{"apiVersion": "v1", "kind": "List", "items": items}, "", "    ")
	if err != nil {
		b.Fatal(err)
	}
	one := map[string]string{}
	for name, data := range map[string][]byte{"documents.yaml": documents.Bytes(), "list.json": jsonList} {
		dir := b.TempDir()
		write(dir, name, data)
		one[name] = dir
	}
	l, err := yaml.JSONToYAML(jsonList)
	if err != nil {
		b.Fatal(err)
	}
	dir := b.TempDir()
	write(dir, "list.yaml", l)
	one["list.yaml"], one["folder of 5000 files"] = dir, folder
	for name, dir := range one {
		b.Run(name, func(b *testing.B) {
			var before, after runtime.MemStats
			for b.Loop() {
				runtime.ReadMemStats(&before)
				st, err := New(dir).Load()
				runtime.ReadMemStats(&after)
				if err != nil || len(st.Objects) != 2*benchServices {
					b.Fatalf("%d objects, %v", len(st.Objects), err)
				}
			}
			b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/(1<<20), "MiB-alloc")
			b.ReportMetric(float64(after.Sys)/(1<<20), "MiB-sys")
		})
	}
}
