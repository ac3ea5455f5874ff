// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"sigs.k8s.io/yaml"

	"beeline.io/beeline/internal/cluster/service"
)

var byValue = cmp.Options{
	cmpopts.EquateEmpty(),
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// All kinds, through the strict decoder, with the API server's defaults.
func TestAllKinds(t *testing.T) {
	st := mustLoad(t, folder(t, map[string]string{"all.yaml": `
apiVersion: v1
kind: Node
metadata:
  name: node-a
  labels: {topology.kubernetes.io/zone: zone-a}
  creationTimestamp: null
spec:
  podCIDR: 10.10.1.0/24
  podCIDRs: [10.10.1.0/24, "fd00:10:1::/64"]
status:
  addresses: [{type: InternalIP, address: 192.168.100.1}]
  capacity: {cpu: 2, memory: 4Gi, pods: "110"}
---
apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: kubernetes}
spec: {cidrs: [10.96.0.0/16]}
---
apiVersion: v1
kind: Service
metadata:
  name: web
  creationTimestamp: 2024-05-06T07:08:09Z
  managedFields: [{fieldsV1: {"f:spec": {"f:ports": {}}}, time: "2024-05-06T07:08:09Z"}]
spec:
  clusterIP: 10.96.0.10
  sessionAffinity: ClientIP
  ports: [{name: http, port: 80, targetPort: http}, {name: dns, port: 0x35, targetPort: 53, protocol: UDP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: web-1
  namespace: shop
  labels: {kubernetes.io/service-name: web}
  annotations: {beeline.io/weight: "7"}
addressType: IPv6
ports: [{port: 8080}]
endpoints: [{addresses: ["fd00::1"], conditions: {ready: no}, nodeName: node-a}]
---
apiVersion: v1
kind: Pod
metadata: {name: a1, uid: "1", annotations: {beeline.io/socket-shortcut: "off"}}
spec:
  nodeName: node-a
  runtimeClassName: careful
  containers:
  - name: c
    resources: {limits: {cpu: 0.5}}
    livenessProbe: {httpGet: {port: 80}}
    ports: [{containerPort: 8080, hostPort: 80}]
status: {podIP: 10.10.1.11}
---
apiVersion: v1
kind: Namespace
metadata: {name: shop, annotations: {beeline.io/socket-shortcut: "off"}}
spec: {finalizers: [kubernetes]}
status: {phase: Active}
---
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: careful, annotations: {beeline.io/socket-shortcut: "on"}}
handler: runc
overhead: {podFixed: {cpu: 250m}}
scheduling: {nodeSelector: {a: b}}
`[1:]}))
	want := []service.Object{
		&service.EndpointSlice{
			Namespace: "shop", Name: "web-1", Service: "web", Family: service.IPv6,
			Ports:     []service.EndpointPort{{Protocol: service.TCP, Port: 8080}},
			Endpoints: []service.Endpoint{{Addr: addr("fd00::1"), Node: "node-a", Serving: true, Weight: 7}},
		},
		&service.Namespace{Name: "shop", Shortcut: service.ShortcutOff},
		&service.Node{
			Name: "node-a", Zone: "zone-a", Addresses: []netip.Addr{addr("192.168.100.1")},
			PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.10.1.0/24"), netip.MustParsePrefix("fd00:10:1::/64")},
		},
		&service.Pod{
			Namespace: "default", Name: "a1", UID: "1", Node: "node-a", IPs: []netip.Addr{addr("10.10.1.11")},
			HostPorts:    []service.PodPort{{HostPort: 80, ContainerPort: 8080, Protocol: service.TCP}},
			RuntimeClass: "careful", Shortcut: service.ShortcutOff,
		},
		&service.RuntimeClass{Name: "careful", Shortcut: service.ShortcutOn},
		&service.Service{
			Namespace: "default", Name: "web", Created: time.Date(2024, 5, 6, 7, 8, 9, 0, time.UTC),
			Type: "ClusterIP", ClusterIPs: []string{"10.96.0.10"}, IPFamilies: []service.Family{service.IPv4},
			Ports:    []service.ServicePort{{Name: "http", Protocol: service.TCP, Port: 80}, {Name: "dns", Protocol: service.UDP, Port: 53}},
			Affinity: 3 * time.Hour,
		},
		&service.ServiceCIDR{Name: "kubernetes", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}},
	}
	if diff := cmp.Diff(want, st.Objects, byValue); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
}

// The same object in all notations.
func TestSpellings(t *testing.T) {
	asJSON, err := yaml.YAMLToJSON([]byte(web))
	if err != nil {
		t.Fatal(err)
	}
	list := "apiVersion: v1\nkind: List\nitems:\n- " + strings.ReplaceAll(strings.TrimSpace(web), "\n", "\n  ") + "\n"
	want := mustLoad(t, folder(t, map[string]string{"web.yaml": web})).Objects
	for name, files := range map[string]map[string]string{
		"yml":                      {"web.yml": web},
		"upper case":               {"WEB.YAML": web},
		"JSON":                     {"web.json": string(asJSON)},
		"JSON in YAML":             {"web.yaml": string(asJSON)},
		"indented JSON":            {"web.json": "\n" + strings.ReplaceAll(string(asJSON), ",", ",\n\t")},
		"List":                     {"web.yaml": list},
		"List in a List":           {"web.yaml": "apiVersion: v1\nkind: List\nitems:\n- " + strings.ReplaceAll(strings.TrimSpace(list), "\n", "\n  ")},
		"no line end":              {"web.yaml": strings.TrimSpace(web)},
		"Windows line ends":        {"web.yaml": strings.ReplaceAll("---\n"+web+"---\n", "\n", "\r\n")},
		"byte order mark":          {"web.yaml": "\ufeff" + web},
		"comments between":         {"web.yaml": "# a\n---\n# b\n---\n\n---\n" + web + "---\n# c\n---\n"},
		"directive":                {"web.yaml": "%YAML 1.1\n---\n" + web},
		"document end":             {"web.yaml": web + "...\n# the end\n"},
		"documents by ends":        {"web.yaml": "null\n...\n---\n" + web + "...\n---\n...\n"},
		"content after the marker": {"web.yaml": "--- {apiVersion: v1, kind: Service, metadata: {name: web}, spec: {clusterIP: 10.96.0.10, ports: [{port: 80}]}}"},
		"marker in a text": {"web.yaml": edit(t, web, "name: web", `name: web
  annotations:
    text: |
      one
      ---
      two`)},
		"anchors": {"web.yaml": edit(t, web, "name: web", "name: &n web\n  labels: {app: *n}")},
		"merge": {"web.yaml": edit(t, web, "name: web", `name: web
  labels: &l {a: b}
  annotations:
    <<: *l
    c: d`)},
		"merge overridden": {"web.yaml": edit(t, web, "- port: 80", `- {<<: [{port: 80}, {port: 81}], protocol: TCP}`)},
		"all defaults":     {"web.yaml": edit(t, web, "  ports:", "  type: ClusterIP\n  clusterIPs: [10.96.0.10]\n  ipFamilies: [IPv4]\n  sessionAffinity: None\n  ports:")},
		"nulls":            {"web.yaml": edit(t, web, "  ports:", "  type:\n  externalIPs: ~\n  internalTrafficPolicy: null\n  ports:")},
		"others beside": {"web.yaml": web, ".hidden.yaml": "{", "web.yaml~": "{", "#web.yaml#": "{", ".web.yaml.swp": "{",
			"web.yaml.bak": "{", "README.md": "{", "4913": "{"},
		"files without objects beside": {"web.yaml": web, "a.yaml": "---\n", "b.json": "\n", "c.yml": "# nothing\n"},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(want, mustLoad(t, folder(t, files)).Objects, byValue); diff != "" {
				t.Errorf("objects (-want +got):\n%s", diff)
			}
		})
	}
}

// Values that kubectl parses differently from YAML 1.2 have kubectl's meaning.
func TestYAML11(t *testing.T) {
	for in, ready := range map[string]bool{"yes": true, "On": true, "TRUE": true, "y": true, "no": false, "OFF": false, "n": false} {
		st := mustLoad(t, folder(t, map[string]string{"x.yaml": webSlice + "  conditions: {ready: " + in + "}\n"}))
		if got := st.Objects[0].(*service.EndpointSlice).Endpoints[0].Ready; got != ready {
			t.Errorf("ready: %s is %v", in, got)
		}
	}
	for in, port := range map[string]uint16{"017": 15, "0o17": 15, "0x1F": 31, "0b11": 3, "1_000": 1000, "+80": 80} {
		st := mustLoad(t, folder(t, map[string]string{"x.yaml": edit(t, web, "port: 80", "port: "+in)}))
		if got := st.Objects[0].(*service.Service).Ports[0].Port; got != port {
			t.Errorf("port: %s is %d", in, got)
		}
	}
}

// A directory is not read recursively, and directories with the name of a manifest are skipped.
func TestFoldersInside(t *testing.T) {
	dir := folder(t, map[string]string{"web.yaml": web})
	for _, name := range []string{"sub", "sub.yaml"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, name), "bad.yaml", "{")
	}
	if diff := cmp.Diff([]string{"Service default/web"}, refs(mustLoad(t, dir))); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
}

func TestEmptyFolder(t *testing.T) {
	if st := mustLoad(t, t.TempDir()); len(st.Objects) != 0 {
		t.Errorf("%v", refs(st))
	}
}

// A single file is read whatever its name; problems use the user's path.
func TestSingleFile(t *testing.T) {
	dir := folder(t, map[string]string{"web": web, "bad.conf": "a"})
	if diff := cmp.Diff([]string{"Service default/web"}, refs(mustLoad(t, filepath.Join(dir, "web")))); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
	path := filepath.Join(dir, "bad.conf")
	want := path + `:1: want a Kubernetes object, have the string "a"`
	if got := problemsOf(t, path).Error(); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

// Objects and their files have a fixed order, regardless of what was parsed first.
func TestOrder(t *testing.T) {
	files := make(map[string]string)
	var want []string
	for i := range 40 {
		var b strings.Builder
		for j := range 10 {
			fmt.Fprintf(&b, "---\n%s", named(fmt.Sprintf("s%02d-%d", i, j), fmt.Sprintf("10.96.%d.%d", i, j+1)))
			want = append(want, fmt.Sprintf("Service default/s%02d-%d", i, j))
		}
		files[fmt.Sprintf("%02d.yaml", i)] = b.String()
	}
	if diff := cmp.Diff(want, refs(mustLoad(t, folder(t, files)))); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
}

// The examples are valid, and match the lab.
func TestExamples(t *testing.T) {
	st := mustLoad(t, "../../../../examples")
	pods := make(map[netip.Addr]string)
	for i := 1; i <= 2; i++ {
		for j := 11; j <= 13; j++ {
			node := fmt.Sprintf("node-%c", 'a'+i-1)
			pods[addr(fmt.Sprintf("10.10.%d.%d", i, j))] = node
			pods[addr(fmt.Sprintf("fd00:10:%d::%d", i, j))] = node
		}
	}
	services, slices := make(map[string]bool), 0
	for _, o := range st.Objects { // EndpointSlices come first
		if s, ok := o.(*service.Service); ok {
			services[s.Name] = true
		}
	}
	for _, o := range st.Objects {
		slice, ok := o.(*service.EndpointSlice)
		if !ok {
			continue
		}
		slices++
		if !services[slice.Service] {
			t.Errorf("%s: no Service %q", o.Ref(), slice.Service)
		}
		for _, e := range slice.Endpoints {
			if node, ok := pods[e.Addr]; !ok || node != e.Node {
				t.Errorf("%s: the lab has no pod %s on %s", o.Ref(), e.Addr, e.Node)
			}
		}
	}
	for _, name := range []string{"web", "sticky", "public", "empty", "canary", "datagrams"} {
		if !services[name] {
			t.Errorf("no Service %s", name)
		}
	}
	if slices != 12 {
		t.Errorf("%d slices", slices)
	}
}
