// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Every problem is reported with file, line, object, reason and what to change, but without problems that only
// follow from others.
func TestBadInputs(t *testing.T) {
	service := func(old, new string) string { return edit(t, web, old, new) }
	slice := func(old, new string) string { return edit(t, webSlice, old, new) }
	port := func(s string) string { return service("port: 80", s) }
	const (
		svc = ": Service default/web: "
		eps = ": EndpointSlice default/web-1: "
	)
	for _, test := range []struct {
		name, in string
		want     []string
	}{
		// Not YAML.
		{"indented too little", service("  ports", " ports"),
			[]string{"7: not YAML: did not find expected key (is the line indented as the lines above it are?)"}},
		{"indented too far", service("name: web", "name: web\n    labels: {}"),
			[]string{`5: not YAML: mapping values are not allowed in this context (is the line indented too far, or does a value with ": " in it need quotes?)`}},
		{"tab", service("  name", "\tname"),
			[]string{"4: not YAML: found character that cannot start any token (put the value in quotes; indent with spaces, not tabs)"}},
		{"open quote", service("name: web", `name: "web`),
			[]string{"4: not YAML: found unexpected end of stream (a quote that is never closed?)"}},
		{"open bracket", service("spec:", "spec: ["),
			[]string{"5: not YAML: did not find expected ',' or ']' (a bracket that is never closed?)"}},
		{"unknown anchor", service("name: web", "name: *web"),
			[]string{"4: not YAML: unknown anchor 'web' referenced"}},
		{"control character", service("web", "w\x01eb"),
			[]string{"4: not YAML: control characters are not allowed (value: 1)"}},
		{"not UTF-8", service("web", "w\xffeb"),
			[]string{"4: not UTF-8 text; save the file as UTF-8"}},

		// Not an object.
		{"a text", "hello\n---\n" + web, []string{`1: want a Kubernetes object, have the string "hello"`}},
		{"a list", web + "---\n- a\n", []string{"10: want a Kubernetes object, have a list"}},
		{"no kind", service("kind: Service\n", ""),
			[]string{`1: kind: missing; write the kind of the object, as in "kind: Service"`}},
		{"no apiVersion", service("apiVersion: v1\n", ""),
			[]string{`1: Service: apiVersion: missing; write the API version of the object, as in "apiVersion: v1"`}},
		{"old apiVersion", slice("io/v1", "io/v1beta1"),
			[]string{"1" + eps + "apiVersion: discovery.k8s.io/v1beta1 is not read; write discovery.k8s.io/v1"}},
		{"apiVersion of another kind", slice("discovery.k8s.io/v1", "v1"),
			[]string{"1" + eps + "apiVersion: v1 is not read; write discovery.k8s.io/v1"}},
		{"bad items", "apiVersion: v1\nkind: List\nitems: {}\n", []string{"3: List: items: want a list, have a mapping"}},
		{"bad List", "apiVersion: v1\nkind: List\nitem: []\n",
			[]string{"3: List: item: unknown field; remove it, or correct its name or indentation"}},
		{"bad item", "apiVersion: v1\nkind: List\nitems:\n- a\n- " + strings.ReplaceAll(port("port: 0"), "\n", "\n  "),
			[]string{`4: want a Kubernetes object, have the string "a"`, "12" + svc + "spec.ports[0].port: 0: expected a port from 1 to 65535"}},
		{"Lists in Lists", strings.Repeat("{apiVersion: v1, kind: List, items: [", 4) + strings.Repeat("]}", 4),
			[]string{"1: List: Lists are nested more than 3 levels deep; put the objects into one List"}},

		// Unknown fields, and values of a wrong type.
		{"unknown field", port("port: 80\n    colour: red"),
			[]string{"9" + svc + "spec.ports[0].colour: unknown field; remove it, or correct its name or indentation"}},
		{"misspelt field", port("prot: 80"), []string{`8` + svc + `spec.ports[0].prot: unknown field; is "port" meant?`}},
		{"wrong case", service("clusterIP", "clusterip"), []string{`6` + svc + `spec.clusterip: unknown field; is "clusterIP" meant?`}},
		{"misspelt section", service("spec:", "specs:"), []string{`5` + svc + `specs: unknown field; is "spec" meant?`}},
		{"repeated field", port("port: 80\n    port: 81"),
			[]string{"9" + svc + "spec.ports[0].port: given twice, first on line 8; remove one of the two"}},
		{"several fields", port("port: http\n    colour: red\n    targetPort: [a]\n  type: Nodeport"), []string{
			`8` + svc + `spec.ports[0].port: want a whole number, have the string "http"`,
			"9" + svc + "spec.ports[0].colour: unknown field; remove it, or correct its name or indentation",
			"10" + svc + "spec.ports[0].targetPort: want a whole number, have a list",
			`11` + svc + `spec.type: "Nodeport": want ClusterIP, NodePort, LoadBalancer or ExternalName`,
		}},
		{"number in quotes", port(`port: "80"`), []string{`8` + svc + `spec.ports[0].port: want a whole number without quotes, have the string "80"`}},
		{"text for a number", port("port: http"), []string{`8` + svc + `spec.ports[0].port: want a whole number, have the string "http"`}},
		{"fraction", port("port: 80.5"), []string{"8" + svc + "spec.ports[0].port: want a whole number, have the number 80.5"}},
		{"number too large", port("port: 80000000000"),
			[]string{"8" + svc + "spec.ports[0].port: want a number from -2147483648 to 2147483647, have the number 80000000000"}},
		{"mapping for a number", port("port: {a: b}"), []string{"8" + svc + "spec.ports[0].port: want a whole number, have a mapping"}},
		{"number for a text", service("name: web", "name: 80"),
			[]string{"4: Service default/80: metadata.name: want a string, have the number 80; write it in quotes"}},
		{"boolean for a text", service("name: web", "name: web\n  labels: {a: yes}"),
			[]string{"5" + svc + "metadata.labels.a: want a string, have the boolean yes; write it in quotes"}},
		{"tag for a text", service("name: web", "name: web\n  uid: !secret x"),
			[]string{"5" + svc + "metadata.uid: a value with the tag !secret is not read"}},
		{"list for a mapping", service("name: web", "name: web\n  labels: [a]"), []string{"5" + svc + "metadata.labels: want a mapping, have a list"}},
		{"mapping for a list", service("ports:\n  - port", "ports:\n    port"), []string{"8" + svc + "spec.ports: want a list, have a mapping"}},
		{"text for a mapping", web[:strings.Index(web, "spec:")] + "spec: x\n", []string{`5` + svc + `spec: want a mapping, have the string "x"`}},
		{"number for a boolean", slice("- 10.10.1.11", "- 10.10.1.11\n  conditions: {ready: 1}"),
			[]string{"13" + eps + "endpoints[0].conditions.ready: want true or false, have the number 1"}},
		{"mapping for a name", service("name: web", "name: web\n  ? [a]\n  : b"),
			[]string{"5" + svc + "metadata: want a name before the colon, have a list"}},
		{"tag in a nested value", service("name: web", "name: web\n  managedFields: [{fieldsV1: {a: [!x b]}}]"),
			[]string{"5" + svc + "metadata.managedFields[0].fieldsV1.a[0]: a value with the tag !x is not read"}},
		{"too deep", service("name: web", "name: web\n  managedFields: [{fieldsV1: "+strings.Repeat("{a: ", 100)+strings.Repeat("}", 100)+"}]"),
			[]string{"5" + svc + "values are nested more than 100 levels deep"}},
		{"bad time", service("name: web", "name: web\n  creationTimestamp: yesterday"),
			[]string{`5` + svc + `metadata.creationTimestamp: the string "yesterday": parsing time "yesterday" as "2006-01-02T15:04:05Z07:00": cannot parse "yesterday" as "2006"`}},
		{"empty key", service("name: web", "name: web\n  labels: {'': 1}"),
			[]string{"5" + svc + "metadata.labels[]: want a string, have the number 1; write it in quotes"}},
		{"bad merge", service("spec:", "spec:\n  <<: 3"), []string{"6: <<: want a mapping or a list of mappings, have the number 3"}},

		// Names.
		{"no name", service("name: web", "labels: {}"), []string{"3: Service without a name: metadata.name: missing; write a name"}},
		{"generated name", service("name", "generateName"),
			[]string{"3: Service without a name: metadata.name: missing; generateName needs an API server, so write a name"}},
		{"Service name", service("name: web", "name: web.a"),
			[]string{`4: Service default/web.a: metadata.name: "web.a": want at most 63 lower-case letters, digits and '-', a letter or digit at both ends`}},
		{"slice name", slice("name: web-1", "name: web_1"),
			[]string{`4: EndpointSlice default/web_1: metadata.name: "web_1": want lower-case letters, digits, '-' and '.', a letter or digit at both ends of each part, at most 253 in all`}},
		{"namespace", service("name: web", "name: web\n  namespace: Shop"),
			[]string{`5: Service Shop/web: metadata.namespace: "Shop": want at most 63 lower-case letters, digits and '-', a letter or digit at both ends`}},
		{"namespace of a Node", "apiVersion: v1\nkind: Node\nmetadata:\n  name: a\n  namespace: default\n",
			[]string{`5: Node a: metadata.namespace: "default": a Node has no namespace; remove it`}},
		{"Namespace name", "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: a.b\n",
			[]string{`4: Namespace a.b: metadata.name: "a.b": want at most 63 lower-case letters, digits and '-', a letter or digit at both ends`}},
		{"RuntimeClass without a handler", "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata:\n  name: a\n",
			[]string{"1: RuntimeClass a: handler: missing; write its name in the nodes' container runtimes"}},
		{"shortcut neither on nor off", "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: a\n  annotations:\n    beeline.io/socket-shortcut: disabled\n",
			[]string{`6: warning: Namespace a: metadata.annotations[beeline.io/socket-shortcut]: "disabled": want "on" or "off"; ignored`}},
		{"health check", "apiVersion: v1\nkind: Service\nmetadata:\n  name: a\n  annotations:\n    beeline.io/health-check: http\n    beeline.io/health-check-path: x\nspec:\n  clusterIP: 10.96.0.10\n  ports: [{port: 80}]\n",
			[]string{`7: warning: Service default/a: metadata.annotations[beeline.io/health-check-path]: "x": write a path with a leading slash, such as /healthz`}},
		{"shortcut without quotes", "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  annotations:\n    beeline.io/socket-shortcut: off\n",
			[]string{`6: Pod default/a: metadata.annotations[beeline.io/socket-shortcut]: want a string, have the boolean off; write it in quotes`}},
		{"the ClusterIP of another", web + "---\n" + named("second", "10.96.0.10"),
			[]string{"10: Service default/second: spec.clusterIPs: 10.96.0.10 already belongs to Service default/web (x.yaml:1); choose another"}},
		{"twice in a file", web + "---\n" + web, []string{"10" + svc + "is already in x.yaml:1; remove one of the two"}},
		{"several documents", port("port: -1") + "---\n" + slice("IPv4", "ipv4"), []string{
			"8" + svc + "spec.ports[0].port: -1: expected a port from 1 to 65535",
			`16` + eps + `addressType: "ipv4": expected IPv4, IPv6 or FQDN`,
		}},
		{"syntax error and others", "a: [\n---\n" + port("port: 65536"), []string{
			"1: not YAML: did not find expected node content (a bracket that is never closed?)",
			"10" + svc + "spec.ports[0].port: 65536: expected a port from 1 to 65535",
		}},
	} {
		t.Run(test.name, func(t *testing.T) { checkProblems(t, test.in, test.want) })
	}
}

// checkProblems loads a folder with the one file x.yaml.
func checkProblems(t *testing.T, in string, want []string) {
	t.Helper()
	got := []string{}
	for _, p := range problemsOf(t, folder(t, map[string]string{"x.yaml": in})) {
		got = append(got, strings.TrimPrefix(p.String(), "x.yaml:"))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("of\n%s\nproblems (-want +got):\n%s", in, diff)
	}
}

// What an API server would reject, and Beeline reads.
func TestBadObjects(t *testing.T) {
	spec := func(s string) string { return edit(t, web, "  clusterIP: 10.96.0.10\n", s) }
	ranged := func(ingress string) string {
		return spec("  clusterIP: 10.96.0.1\n  type: LoadBalancer\n  externalIPs: ['2001:db8::1']\n  loadBalancerSourceRanges: [192.0.2.0/24]\n") +
			"status:\n  loadBalancer:\n    ingress:\n    - " + ingress + "\n"
	}
	ports := func(s string) string { return edit(t, web, "  - port: 80\n", s) }
	endpoints := func(s string) string { return edit(t, webSlice, "- addresses:\n  - 10.10.1.11\n", s) }
	slicePorts := func(s string) string { return edit(t, webSlice, "- port: 8080\n", s) }
	node := func(s string) string { return "apiVersion: v1\nkind: Node\nmetadata:\n  name: a\nspec:\n" + s }
	cidr := func(s string) string {
		return "apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata:\n  name: a\nspec:\n" + s
	}
	pod := func(s string) string {
		return "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\nspec:\n  containers:\n  - name: c\n    ports:\n" + s
	}
	const (
		svc  = ": Service default/web: spec."
		eps  = ": EndpointSlice default/web-1: "
		warn = ": warning: "

		notServed = "without one the Service is not served, at its other addresses neither; write an address, such as that of spec.externalIPs"
	)
	for _, test := range []struct {
		name, in string
		want     []string
	}{
		{"type", spec("  clusterIP: None\n  type: Nodeport\n"), []string{`7` + svc + `type: "Nodeport": want ClusterIP, NodePort, LoadBalancer or ExternalName`}},
		{"no cluster IP", spec("  type: LoadBalancer\n"),
			[]string{"5" + warn + svc[2:] + "clusterIP: missing, and addresses are not allocated for manifests: the Service has no cluster IP; write one, or None"}},
		{"external IPs alone", spec("  externalIPs: [192.0.2.1]\n"), []string{"5" + svc + "clusterIP: missing: " + notServed}},
		{"external IPs of a headless Service", spec("  clusterIP: None\n  externalIPs: [192.0.2.1]\n"), []string{"6" + svc + "clusterIP: None: " + notServed}},
		{"an ingress address alone", spec("  type: LoadBalancer\n") + "status: {loadBalancer: {ingress: [{ip: 192.0.2.1}]}}\n", []string{"5" + svc + "clusterIP: missing: " + notServed}},
		{"a node port alone", strings.Replace(spec("  type: NodePort\n"), "port: 80", "{port: 80, nodePort: 30080}", 1), []string{"5" + svc + "clusterIP: missing: " + notServed}},
		{"cluster IP", spec("  clusterIP: 10.96.0.300\n"), []string{`6` + svc + `clusterIP: "10.96.0.300": expected an IPv4 or IPv6 address`}},
		{"cluster IPs alone", spec("  clusterIPs: [10.96.0.1]\n"), []string{`5` + svc + `clusterIP: missing; write "10.96.0.1", the first of spec.clusterIPs`}},
		{"another first", spec("  clusterIP: 10.96.0.1\n  clusterIPs: [10.96.0.2]\n"),
			[]string{`6` + svc + `clusterIP: "10.96.0.1": want the first of spec.clusterIPs, "10.96.0.2"`}},
		{"one family twice", spec("  clusterIP: 10.96.0.1\n  clusterIPs:\n  - 10.96.0.1\n  - 10.96.0.2\n"),
			[]string{`9` + svc + `clusterIPs[1]: "10.96.0.2": spec.clusterIPs[0] is of the same family; write one address for each family`}},
		{"families twice", spec("  clusterIP: None\n  ipFamilies: [IPv4, IPv4]\n"),
			[]string{"7" + svc + "ipFamilies[1]: IPv4: spec.ipFamilies[0] is the same; write each family once"}},
		{"other family", spec("  clusterIP: 10.96.0.1\n  ipFamilies: [IPv6]\n"),
			[]string{`6` + svc + `clusterIP: "10.96.0.1": want an IPv6 address, as spec.ipFamilies[0] says`}},
		{"families the wrong way round", spec("  clusterIP: fd00::1\n  clusterIPs: ['fd00::1', 10.96.0.1]\n  ipFamilies: [IPv4, IPv6]\n"), []string{
			`7` + svc + `clusterIPs[0]: "fd00::1": want an IPv4 address, as spec.ipFamilies[0] says`,
			`7` + svc + `clusterIPs[1]: "10.96.0.1": want an IPv6 address, as spec.ipFamilies[1] says`,
		}},
		{"no family", spec("  clusterIP: None\n  ipFamilies: [IPv5]\n"), []string{`7` + svc + `ipFamilies[0]: "IPv5": expected IPv4 or IPv6`}},
		{"None and another", spec("  clusterIP: None\n  clusterIPs: [None, 10.96.0.1]\n"), []string{"7" + svc + "clusterIPs[0]: None stands alone; remove the others"}},
		{"empty cluster IP", spec("  clusterIP: 10.96.0.1\n  clusterIPs: [10.96.0.1, '']\n"), []string{"7" + svc + "clusterIPs[1]: empty; write an address, or remove it"}},
		{"policies", spec("  clusterIP: None\n  type: NodePort\n  externalTrafficPolicy: local\n  internalTrafficPolicy: node\n"), []string{
			`8` + svc + `externalTrafficPolicy: "local": want Cluster or Local`,
			`9` + svc + `internalTrafficPolicy: "node": want Cluster or Local`,
			"11" + warn + svc[2:] + "ports[0].nodePort: missing, and ports are not allocated for manifests: the port has no node port; write one, as in 30080",
		}},
		{"policy without a meaning", spec("  clusterIP: None\n  externalTrafficPolicy: Local\n"),
			[]string{"7" + svc + "externalTrafficPolicy: has no effect on a Service of type ClusterIP without externalIPs; remove it"}},
		{"source ranges of another type", spec("  clusterIP: None\n  loadBalancerSourceRanges: [192.0.2.0/24]\n"),
			[]string{"7" + svc + "loadBalancerSourceRanges: has no effect on a Service of type ClusterIP: all clients reach it; write type: LoadBalancer, and its addresses to status.loadBalancer.ingress"}},
		{"source ranges without their addresses", spec("  clusterIP: 10.96.0.1\n  type: LoadBalancer\n  externalIPs: [192.0.2.1]\n  loadBalancerSourceRanges: [192.0.2.0/24]\n"),
			[]string{"9" + warn + svc[2:] + "loadBalancerSourceRanges: has no effect without addresses in status.loadBalancer.ingress: all clients reach the others"}},
		{"source ranges beside a host name", ranged("hostname: lb.example.org"),
			[]string{"9" + warn + svc[2:] + "loadBalancerSourceRanges: has no effect without addresses in status.loadBalancer.ingress: all clients reach the others"}},
		{"source ranges beside an external IP", ranged("ip: 192.0.2.1"),
			[]string{"8" + warn + svc[2:] + "externalIPs[0]: all clients reach 2001:db8::1, also those outside spec.loadBalancerSourceRanges; write it to status.loadBalancer.ingress instead"}},
		{"source ranges of an external IP", ranged("ip: '2001:db8:0::1'"), []string{}},
		{"affinity", spec("  clusterIP: None\n  sessionAffinity: clientIP\n"), []string{`7` + svc + `sessionAffinity: "clientIP": expected ClientIP or None`}},
		{"nothing but a name", "apiVersion: v1\nkind: Service\nmetadata:\n  name: web\nspec: {type: ExternalName, externalName: example.org}\n", []string{}},
		{"headless without ports", "apiVersion: v1\nkind: Service\nmetadata:\n  name: web\nspec: {clusterIP: None}\n", []string{}},
		{"external IPs", spec("  clusterIP: 10.96.0.1\n  externalIPs: ['', 1.2.3]\n"), []string{
			"7" + svc + "externalIPs[0]: empty; write an address, or remove it",
			`7` + svc + `externalIPs[1]: "1.2.3": expected an IPv4 or IPv6 address`,
		}},
		{"source range", spec("  clusterIP: None\n  type: LoadBalancer\n  loadBalancerSourceRanges:\n  - 10.0.0.0/33\n"),
			[]string{"8" + warn + svc[2:] + "loadBalancerSourceRanges: has no effect without addresses in status.loadBalancer.ingress: all clients reach the others",
				`9` + svc + `loadBalancerSourceRanges[0]: "10.0.0.0/33": expected a CIDR such as 192.0.2.0/24 or 2001:db8::/32`}},

		{"no ports", ports("    []\n"), []string{"7" + svc + "ports: empty; write at least one port"}},
		{"no port", ports("  - name: a\n"), []string{"8" + svc + "ports[0].port: 0: expected a port from 1 to 65535"}},
		{"port names", ports("  - port: 80\n  - port: 81\n    name: A\n"), []string{
			"8" + svc + "ports[0].name: missing; with several ports, each needs a name",
			`10` + svc + `ports[1].name: "A": want at most 63 lower-case letters, digits and '-', a letter or digit at both ends`,
		}},
		{"port name twice", ports("  - port: 80\n    name: a\n  - port: 81\n    name: a\n"),
			[]string{`11` + svc + `ports[1].name: "a": spec.ports[0].name already has this name; give each port a different name`}},
		{"port twice", ports("  - port: 80\n    name: a\n  - port: 80\n    name: b\n    protocol: TCP\n  - port: 80\n    name: c\n    protocol: UDP\n"),
			[]string{"10" + svc + "ports[1].port: 80/TCP: spec.ports[0].port is the same; choose another port or protocol"}},
		{"protocol", ports("  - port: 80\n    protocol: tcp\n"), []string{`9` + svc + `ports[0].protocol: "tcp": expected TCP, UDP or SCTP`}},
		{"node port of a ClusterIP", ports("  - port: 80\n    nodePort: 30080\n"),
			[]string{"9" + svc + "ports[0].nodePort: 30080: a Service of type ClusterIP has no node ports; remove it, or write type: NodePort"}},
		{"node port twice", ports("  - port: 80\n    name: a\n    nodePort: 30080\n  - port: 81\n    name: b\n    nodePort: 30080\n  type: NodePort\n"),
			[]string{"13" + svc + "ports[1].nodePort: 30080/TCP: spec.ports[0].nodePort is the same; choose another port or protocol"}},
		{"node port", ports("  - port: 80\n    nodePort: 300800\n  type: NodePort\n"),
			[]string{"9" + svc + "ports[0].nodePort: 300800: expected a port from 1 to 65535"}},

		{"no label", edit(t, webSlice, "  labels:\n    kubernetes.io/service-name: web\n", ""),
			[]string{"3" + warn + eps[2:] + "metadata.labels: no label kubernetes.io/service-name, so its endpoints serve no Service; write the Service's name there"}},
		{"address type", edit(t, webSlice, "addressType: IPv4\n", ""), []string{`1` + eps + `addressType: "": expected IPv4, IPv6 or FQDN`}},
		{"weight", edit(t, webSlice, "  labels:", "  annotations:\n    beeline.io/weight: '256'\n  labels:"),
			[]string{`6` + eps + `metadata.annotations[beeline.io/weight]: "256": expected an integer from 0 to 255`}},
		{"address of another family", endpoints("- addresses:\n  - fd00::1\n"),
			[]string{`12` + eps + `endpoints[0].addresses[0]: "fd00::1": want an IPv4 address, as addressType says; put other addresses into a slice of their own`}},
		{"addresses", endpoints("- addresses: [10.0.0.300]\n- addresses: [10.0.0.1, 10.0.0.x]\n- addresses: []\n- {}\n- addresses: ['']\n- addresses: [127.0.0.1]\n- addresses: [224.0.0.1]\n"), []string{
			`11` + eps + `endpoints[0].addresses[0]: "10.0.0.300": expected an IPv4 or IPv6 address`,
			`12` + eps + `endpoints[1].addresses[1]: "10.0.0.x": want an IPv4 address`,
			"13" + eps + "endpoints[2].addresses: empty; write the endpoint's address, or remove the endpoint",
			"14" + eps + "endpoints[3].addresses: empty; write the endpoint's address, or remove the endpoint",
			"15" + eps + "endpoints[4].addresses[0]: empty; write an IPv4 address",
			`16` + eps + `endpoints[5].addresses[0]: "127.0.0.1": an endpoint cannot have a loopback or link-local address; write the address at which other nodes reach it`,
			`17` + eps + `endpoints[6].addresses[0]: "224.0.0.1": expected a unicast address`,
		}},
		{"node name", endpoints("- addresses: [10.0.0.1]\n  nodeName: Node A\n"),
			[]string{`12` + eps + `endpoints[0].nodeName: "Node A": want lower-case letters, digits, '-' and '.', a letter or digit at both ends of each part, at most 253 in all`}},
		{"endpoint ports", slicePorts("- port: 99999\n- name: A\n  port: 1\n- name: b\n- name: b\n  protocol: X\n  port: 3\n"), []string{
			"9" + eps + "ports[0].port: 99999: expected a port from 1 to 65535",
			`10` + eps + `ports[1].name: "A": want at most 63 lower-case letters, digits and '-', a letter or digit at both ends`,
			`13` + eps + `ports[3].name: "b": ports[2].name already has this name; give each port a different name`,
			`14` + eps + `ports[3].protocol: "X": expected TCP, UDP or SCTP`,
		}},

		{"pod CIDRs", node("  podCIDR: 10.0.0.0/24\n  podCIDRs:\n  - 10.1.0.1/24\n  - 10.2.0.0/24\n  - x\n"), []string{
			`6: Node a: spec.podCIDR: "10.0.0.0/24": want the first of spec.podCIDRs, "10.1.0.1/24", or remove it`,
			`8: Node a: spec.podCIDRs[0]: "10.1.0.1/24": has bits set after the first 24; write 10.1.0.0/24`,
			`9: Node a: spec.podCIDRs[1]: "10.2.0.0/24": spec.podCIDRs[0] is of the same family; write one prefix for each family`,
			`10: Node a: spec.podCIDRs[2]: "x": expected a CIDR such as 192.0.2.0/24 or 2001:db8::/32`,
		}},
		{"node address", node("  unschedulable: false\nstatus:\n  addresses:\n  - type: InternalIP\n    address: here\n  capacity:\n    cpu: many\n"), []string{
			`10: Node a: status.addresses[0].address: "here": expected an IPv4 or IPv6 address`,
			`12: Node a: status.capacity.cpu: the string "many": quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'`,
		}},
		{"Service range", cidr("  cidrs: [10.96.0.0/160]\n"), []string{`6: ServiceCIDR a: spec.cidrs[0]: "10.96.0.0/160": expected a CIDR such as 192.0.2.0/24 or 2001:db8::/32`}},
		{"no Service range", cidr("  cidrs: []\n"), []string{"6: ServiceCIDR a: spec.cidrs: empty; write the range of the Services' addresses, as in 10.96.0.0/16"}},
		{"host port", pod("    - containerPort: 80\n      hostPort: 80000\n"),
			[]string{"10: Pod default/a: spec.containers[0].ports[0].hostPort: 80000: expected a port from 1 to 65535"}},
		{"host port twice", pod("    - {containerPort: 80, hostPort: 80}\n    - {containerPort: 81, hostPort: 80}\n    - {containerPort: 81, hostPort: 80, hostIP: 1.2.3.4}\n"),
			[]string{"10: Pod default/a: spec.containers[0].ports[1].hostPort: 80: spec.containers[0].ports[0].hostPort is the same; choose another port, protocol or hostIP"}},
	} {
		t.Run(test.name, func(t *testing.T) { checkProblems(t, test.in, test.want) })
	}
}

// Kinds that Beeline does not read are reported once per file, and are not an error.
func TestUnknownKinds(t *testing.T) {
	const deployment = "apiVersion: apps/v1\nkind: Deployment\nspec: {anything: goes}\n---\n"
	dir := folder(t, map[string]string{
		"a.yaml": deployment + web + "---\napiVersion: serving.knative.dev/v1\nkind: Service\n",
		"b.yaml": deployment + "apiVersion: v1\nkind: Secret\n---\n" + deployment,
		"c.yaml": "apiVersion: v1\nkind: Endpoints\nmetadata: {name: web}\n",
	})
	st, err := New(dir).Load()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"Service default/web"}, refs(st)); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
	want := `a.yaml:1: warning: Deployment (apps): a kind that does not decide where Service traffic goes; skipped
a.yaml:14: warning: Service (serving.knative.dev): a kind that does not decide where Service traffic goes; skipped
b.yaml:1: warning: Deployment (apps): a kind that does not decide where Service traffic goes; skipped, 2 of them
b.yaml:5: warning: Secret: a kind that does not decide where Service traffic goes; skipped
c.yaml:1: warning: Endpoints: is not read: write an EndpointSlice (discovery.k8s.io/v1) with the label kubernetes.io/service-name; skipped`
	if diff := cmp.Diff(want, st.Warnings.Error()); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
	if n := st.Warnings.Warnings(); n != 1 {
		t.Errorf("%d warnings, want only that of Endpoints", n)
	}
}

// A misspelled kind or group is an error, because skipping the object would lose it. Other Kubernetes kinds,
// and those of other projects, are skipped.
func TestSlipsInKinds(t *testing.T) {
	for _, c := range []struct{ apiVersion, kind, want string }{
		{"v1", "service", "kind service of v1 is not read; write kind: Service and apiVersion: v1"},
		{"v1", "Services", "write kind: Service and"},
		{"v1", "Serivce", "write kind: Service and"},
		{"v1", "Nod", "write kind: Node and"},
		{"v1", "namespace", "write kind: Namespace and"},
		{"discovery.k8s.io/v1", "EndpointSlices", "write kind: EndpointSlice and apiVersion: discovery.k8s.io/v1"},
		{"discovery.k8s.io/v1", "Endpointslice", "write kind: EndpointSlice and"},
		{"discovery.k8s.oi/v1", "EndpointSlice", "kind EndpointSlice of discovery.k8s.oi/v1 is not read; write kind: EndpointSlice and apiVersion: discovery.k8s.io/v1"},
		{"networking.k8s.io/v1", "ServiceCidr", "write kind: ServiceCIDR and"},
		{"serving.knative.dev/v1", "Service", ""},
		{"serving.knative.dev/v1", "Services", ""},
		{"v1", "ServiceAccount", ""}, {"v1", "Secret", ""}, {"v1", "ConfigMap", ""}, {"v1", "PodTemplate", ""}, {"v1", "Event", ""},
		{"v1", "Binding", ""}, {"v1", "ComponentStatus", ""}, {"v1", "LimitRange", ""}, {"v1", "PersistentVolume", ""},
		{"v1", "PersistentVolumeClaim", ""}, {"v1", "ReplicationController", ""}, {"v1", "ResourceQuota", ""}, {"v1", "Endpoints", ""},
		{"networking.k8s.io/v1", "Ingress", ""}, {"networking.k8s.io/v1", "IngressClass", ""},
		{"networking.k8s.io/v1", "NetworkPolicy", ""}, {"networking.k8s.io/v1", "IPAddress", ""},
	} {
		dir := folder(t, map[string]string{"a.yaml": fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata: {name: web}\n", c.apiVersion, c.kind)})
		if c.want == "" {
			if _, err := New(dir).Load(); err != nil {
				t.Errorf("%s of %s: %v, want it skipped", c.kind, c.apiVersion, err)
			}
			continue
		}
		if got := problemsOf(t, dir).Error(); !strings.HasPrefix(got, "a.yaml:1: "+c.kind) || !strings.Contains(got, c.want) {
			t.Errorf("%s of %s: %q, want an error with %q", c.kind, c.apiVersion, got, c.want)
		}
	}
}

// An object in two files is an error that names both places.
func TestSameObjectInTwoFiles(t *testing.T) {
	problems := problemsOf(t, folder(t, map[string]string{"a.yaml": "# first\n" + web, "b.json": `

{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {"clusterIP": "None"}}`}))
	want := "b.json:3: Service default/web: is already in a.yaml:2; remove one of the two"
	if diff := cmp.Diff(want, problems.Error()); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}

// JSON is recognized by the file name, and has its own line numbers.
func TestBadJSON(t *testing.T) {
	const object = `{
  "apiVersion": "v1",
  "kind": "Service",
  "metadata": {"name": "web"},
  "spec": {
    "clusterIP": "10.96.0.10",
    "ports": [{"port": 80}]
  }
}`
	for _, test := range []struct{ name, in, want string }{
		{"not JSON", "{\n\"a\": b\n}", "2: not JSON: invalid character 'b' looking for beginning of value"},
		{"no comma", edit(t, object, `"v1",`, `"v1"`), "3: not JSON: invalid character '\"' after object key:value pair"},
		{"line end in a text", edit(t, object, `"web"`, "\"we\nb\""), "4: not JSON: invalid character '\\n' in string literal"},
		{"no value", edit(t, object, `"10.96.0.10"`, "\n10.96.0.10"), "7: not JSON: invalid character '.' after object key:value pair"},
		{"bad value", edit(t, object, `"10.96.0.10"`, "\ntrue\n1"), "8: not JSON: invalid character '1' after object key:value pair"},
		{"half", object[:strings.Index(object, "80}")] + "\n\n", "7: not JSON: it ends in the middle of a value"},
		{"too deep", "\n" + strings.Repeat("[", 500), "2: values are nested more than 100 levels deep"},
		{"repeated", edit(t, object, `"port": 80`, "\"port\": 80,\n\"port\": 80"),
			"8: Service default/web: spec.ports[0].port: given twice, first on line 7; remove one of the two"},
		{"wrong type", edit(t, object, `80`, `"80"`),
			`7: Service default/web: spec.ports[0].port: want a whole number without quotes, have the string "80"`},
		{"second value", object + "\n" + edit(t, object, "80", "81"),
			"10: Service default/web: is already in x.json:1; remove one of the two"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := problemsOf(t, folder(t, map[string]string{"x.json": test.in})).Error()
			if got != "x.json:"+test.want {
				t.Errorf("got  %s\nwant x.json:%s", got, test.want)
			}
		})
	}
}
