// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/conntrack"
	"beeline.io/beeline/internal/shortcut/mesh/hoststack"
)

// All JSON is an object whose first field is the version of its schema; lists are in the field items.
func TestSchemaVersion(t *testing.T) {
	for want, value := range map[string]any{
		`{"schemaVersion":2,"items":["a","b"]}`: []string{"a", "b"},
		`{"schemaVersion":2,"items":[]}`:        []string(nil),
		`{"schemaVersion":2,"a":2}`:             map[string]int{"a": 2},
		`{"schemaVersion":2}`:                   struct{}{},
	} {
		if got, err := versioned(value); err != nil || string(got) != want || !json.Valid(got) {
			t.Errorf("%v is %s (%v), want %s", value, got, err, want)
		}
	}
	var text bytes.Buffer
	if err := write(&text, "yaml", []string{"a"}, nil); err != nil || text.String() != "items:\n- a\nschemaVersion: 2\n" {
		t.Errorf("YAML %q, %v", &text, err)
	}
}

// The version as text is one line for people; as JSON it has what a report of a fault needs.
func TestVersion(t *testing.T) {
	for format, want := range map[string]string{
		"table": "beeline " + version + "\n",
		"json":  "{\n  \"schemaVersion\": 2,\n  \"version\": \"" + version + "\",\n  \"go\": \"" + runtime.Version() + "\",\n  \"platform\": \"linux/" + runtime.GOARCH + "\"\n}\n",
		"yaml":  "go: " + runtime.Version() + "\nplatform: linux/" + runtime.GOARCH + "\nschemaVersion: 2\nversion: " + version + "\n",
	} {
		var text bytes.Buffer
		cmd := newVersionCommand()
		cmd.SetOut(&text)
		cmd.SetArgs([]string{"-o", format})
		if err := cmd.Execute(); err != nil || text.String() != want {
			t.Errorf("version -o %s prints %q (%v), want %q", format, text.String(), err, want)
		}
	}
}

// A shell that merely has the library is listed by request only. What is to be said of a program always is, and so are
// the connections that stay on the kernel.
func TestProgramsOfHostStack(t *testing.T) {
	r := &hoststack.Report{Programs: []hoststack.Program{
		{PIDs: []int{11}, Name: "bash", State: hoststack.Idle},
		{PIDs: []int{12}, Name: "envoy", State: hoststack.On, Counters: &hoststack.Counters{Attached: 5, Refused: map[string]uint64{"kept": 3, "limit": 0, "elsewhere": 2}}},
		{PIDs: []int{13}, Name: "agentd", State: hoststack.Idle, Why: "a Go program"},
		{PIDs: []int{14}, Name: "node", State: hoststack.Idle, IOUring: true},
		{PIDs: []int{15}, Name: "static", State: hoststack.NotLoaded},
	}}
	for all, want := range map[bool][]string{
		false: {"12 envoy", "13 agentd", "14 node", "15 static", "1 program"},
		true:  {"11 bash", "12 envoy", "13 agentd", "14 node", "15 static"},
	} {
		var text bytes.Buffer
		sessionTables(&text, r, false, all)
		var got []string
		for line := range strings.Lines(text.String()) {
			fields := strings.Fields(line)
			if len(fields) == 0 {
				continue
			}
			if fields[1] == "envoy" && !strings.HasSuffix(line, "elsewhere 2, kept 3\n") {
				t.Errorf("refusals are missing: %q", line)
			}
			got = append(got, fields[0]+" "+fields[1])
		}
		if !slices.Equal(got, want) {
			t.Errorf("all=%v lists %q, not %q", all, got, want)
		}
	}
}

func webTables() *api.Tables {
	backends := []api.Member{{ID: 1, Address: "10.0.0.1:8080", Slots: 1}}
	decision := api.Decision{Verdict: service.Balance.String(), Backends: backends}
	frontend := func(address, port string, kind service.FrontendKind) api.Frontend {
		return api.Frontend{Address: address, Protocol: service.TCP, Kind: kind, Port: port, FromPods: decision, FromNode: decision, FromOutside: decision}
	}
	return &api.Tables{OutsideServed: true, Services: []api.Service{{
		Kind: service.KindService, Namespace: "default", Name: "web", State: "applied", Algorithm: service.Random,
		Frontends:    []api.Frontend{frontend("10.96.0.1:80", "http", service.ClusterIP), frontend("192.0.2.1:30080", "http", service.NodePort)},
		EdgeCounters: []api.PortCounters{{Port: "http", Protocol: service.TCP, NewFlows: 5, FromClients: conntrack.Traffic{Packets: 6, Bytes: 360}}},
	}, {Kind: service.KindService, Namespace: "shop", Name: "late", State: "pending"}}}
}

// -o wide adds columns to the table. Counters of a port are shown once, so that they can be summed up.
// --no-headers leaves the rows unchanged.
func TestWideAddsColumns(t *testing.T) {
	print := func(v view) []string {
		var text bytes.Buffer
		serviceTable(&text, webTables(), &v)
		return strings.Split(strings.TrimSpace(text.String()), "\n")
	}
	plain, wide, bare := print(view{output: "table"}), print(view{output: "wide"}), print(view{output: "wide", noHeaders: true})
	if len(plain) != 4 || len(wide) != 4 || len(bare) != 3 {
		t.Fatalf("%d, %d and %d lines", len(plain), len(wide), len(bare))
	}
	for i, line := range plain {
		if fields := strings.Fields(line); !slices.Equal(strings.Fields(wide[i])[:len(fields)], fields) {
			t.Errorf("line %d with -o wide is\n%s\nwithout\n%s", i, wide[i], line)
		}
	}
	if all := strings.Join(wide, "\n"); strings.Count(all, "6 (360 bytes)") != 1 || !strings.Contains(wide[1], "6 (360 bytes)") || !strings.Contains(wide[0], "NEW FLOWS") {
		t.Errorf("counters:\n%s", all)
	}
	if strings.Contains(strings.Join(bare, "\n"), "NAME") {
		t.Errorf("headers in\n%s", strings.Join(bare, "\n"))
	}
}

// --namespace selects by the namespace of an object.
func TestNamespaceChooses(t *testing.T) {
	for _, test := range []struct {
		namespace, name string
		want            bool
	}{{"", "default/web", true}, {"default", "default/web", true}, {"shop", "default/web", false}, {"def", "default/web", false}} {
		v := view{namespace: test.namespace}
		if got := v.of(test.name); got != test.want {
			t.Errorf("%q of --namespace %q: %t", test.name, test.namespace, got)
		}
	}
}

// monitor shows only events of the namespace, and always the number of lost events.
func TestMonitorOfANamespace(t *testing.T) {
	var out bytes.Buffer
	m := monitor{output: "json", view: view{namespace: "shop"}, out: &out}
	for _, name := range []string{"shop/web", "default/web", ""} {
		if err := m.print(api.EventMessage{Event: &api.Event{Service: name}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.print(api.EventMessage{LostEvents: 5}); err != nil || strings.Count(out.String(), "\n") != 2 || !strings.Contains(out.String(), "shop/web") {
		t.Errorf("%v, printed\n%s", err, &out)
	}
}

// --watch prints repeatedly until the command is interrupted, and continues after errors of an
// agent that restarts.
func TestWatch(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := &cobra.Command{}
	cmd.SetContext(ctx)
	var out, errOut bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&errOut)
	v := view{output: "json", interval: time.Millisecond}
	n := 0
	err := v.show(cmd, func() (any, func(io.Writer), error) {
		if n++; n == 2 {
			return nil, nil, context.DeadlineExceeded
		}
		if n == 4 {
			cancel()
		}
		return map[string]int{"n": n}, nil, nil
	})
	if err != nil || !strings.Contains(errOut.String(), "deadline") {
		t.Errorf("%v, errors %q", err, &errOut)
	}
	documents := json.NewDecoder(&out)
	for _, want := range []int{1, 3, 4} {
		var got struct{ N int }
		if err := documents.Decode(&got); err != nil || got.N != want {
			t.Errorf("a document of %d (%v), want %d", got.N, err, want)
		}
	}
	if documents.More() {
		t.Error("it continued after the interrupt")
	}
}

// All commands use the same two flags to select the agent; -o, -n and -w mean the same in all
// commands that have them.
func TestFlagsMeanTheSame(t *testing.T) {
	shorthand, defaults := map[string]string{}, map[string]string{}
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if old := shorthand[f.Name]; old != f.Shorthand && old != "" {
				t.Errorf("%s: --%s has the shorthand %q, and %q elsewhere", cmd.CommandPath(), f.Name, f.Shorthand, old)
			}
			shorthand[f.Name] = f.Shorthand
			for _, old := range []string{"socket", "bpffs", "from-maps"} {
				if f.Name == old {
					t.Errorf("%s has --%s: it is --agent-socket or --pins", cmd.CommandPath(), old)
				}
			}
			if f.Name == socketFlag || f.Name == pinsFlag {
				if old := defaults[f.Name]; old != "" && old != f.DefValue {
					t.Errorf("%s: --%s defaults to %s, and to %s elsewhere", cmd.CommandPath(), f.Name, f.DefValue, old)
				}
				defaults[f.Name] = f.DefValue
			}
		})
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(newRootCommand())
	if len(defaults) != 2 {
		t.Errorf("flags that select an agent: %v", defaults)
	}
}

// Misspelled arguments give exit code 2 and an error that names the correct ones.
func TestNearlyRight(t *testing.T) {
	for args, words := range map[string]string{
		"explain 198.51.100.7 192.0.2.1:80":             "`beeline explain packet` for packets from the network",
		"explain pakcet 198.51.100.7 192.0.2.1:80":      `did you mean "packet"?`,
		"service list -n a -A":                          "--namespace has no effect with --all-namespaces",
		"status --agent-socket a --pins b":              "--agent-socket has no effect with --pins",
		"service show shop/web -n default":              "shop/web is not in the namespace",
		"service list --watch=-1s":                      "negative",
		"flow list --state=":                            "--state is empty: give one or more of",
		"flow list --service a/b/c":                     "not of the form namespace/name or name",
		"monitor --drops yes":                           "write --drops=true",
		"monitor -o yaml":                               "table or json",
		"check --manifests /nowhere --pins no/absolute": "not an absolute path",
	} {
		root := newRootCommand()
		root.SetArgs(strings.Fields(args))
		root.SetOut(io.Discard)
		root.SetErr(io.Discard)
		err := root.ExecuteContext(t.Context())
		if exit := (exitError{}); !errors.As(err, &exit) || exit.code != exitUsage || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v, want exit code 2 and %q", args, err, words)
		}
	}
}

// A value after a flag that may stand alone is an argument to the parser: the error says how to write it, for each such
// flag of each command.
func TestValueWithoutEquals(t *testing.T) {
	values := map[string]string{"bool": "false", "duration": "5s", "string": "false"}
	tried := 0
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.NoOptDefVal == "" || f.Name == "help" {
				return
			}
			tried++
			value := values[f.Value.Type()]
			args := append(strings.Fields(strings.TrimPrefix(cmd.CommandPath(), "beeline ")), strings.Fields(arguments[cmd.CommandPath()])...)
			root := newRootCommand()
			root.SetArgs(append(args, "--"+f.Name, value))
			root.SetOut(io.Discard)
			root.SetErr(io.Discard)
			err := root.ExecuteContext(t.Context())
			want := fmt.Sprintf("write --%s=%s", f.Name, value)
			if exit := (exitError{}); !errors.As(err, &exit) || exit.code != exitUsage || !strings.Contains(err.Error(), want) {
				t.Errorf("%s --%s %s: %v, want exit code 2 and %q", strings.Join(args, " "), f.Name, value, err, want)
			}
		})
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(newRootCommand())
	if tried < 30 {
		t.Errorf("only %d flags may stand alone", tried)
	}
}

// check reports the same problems in manifests as an agent.
func TestCheck(t *testing.T) {
	const node = "apiVersion: v1\nkind: Node\nmetadata: {name: node-a}\nstatus: {addresses: [{type: InternalIP, address: 192.0.2.1}]}\n---\n"
	const web = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {clusterIP: 10.96.0.1, ports: [{name: http, port: 80}]}\n---\n"
	const slice = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: web-1, labels: {kubernetes.io/service-name: web}}\n" +
		"addressType: IPv4\nports: [{name: http, port: 8080}]\nendpoints: [{addresses: [10.0.0.1]}]\n---\n"
	for _, test := range []struct {
		name, manifest string
		code           int
		words          string
	}{
		{"well", node + web + slice, 0, "All is well."},
		{"no slice", node + web, 3, "EndpointsMissing: Service default/web"},
		{"no Service", node + slice, 3, "EndpointSliceUnused: EndpointSlice default/web-1"},
		{"no port", node + strings.Replace(web, "port: 80}", "port: 80000}", 1), 3, "SourceError"},
		{"annotation", node + strings.Replace(web, "name: web", `name: web, annotations: {beeline.io/stateless: "true"}`, 1) + slice, 4, "AnnotationWithoutEffect: Service default/web"},
		// What the source and the rules both find is one condition, with the place and what to change.
		{"health check", node + strings.Replace(web, "name: web", `name: web, annotations: {beeline.io/health-check: htp}`, 1) + slice, 4, `1 warning.
warning  AnnotationInvalid: Service default/web: PATH:8: annotation beeline.io/health-check: "htp": write tcp, http or https
         what to do: correct it; until then its endpoints are not checked`},
		{"opt-out", node + "apiVersion: v1\nkind: Namespace\nmetadata: {name: a, annotations: {beeline.io/socket-shortcut: nope}}\n", 4, `1 warning.
warning  AnnotationInvalid: Namespace a: PATH:8: annotation beeline.io/socket-shortcut: "nope" is ignored
         what to do: write "on" or "off"`},
		{"no label", node + web + slice + strings.NewReplacer("name: web-1, labels: {kubernetes.io/service-name: web}", "name: web-2").Replace(slice), 4, "1 warning."},
		{"another Node", strings.Replace(node, "name: node-a", "name: node-b", 1) + web + slice, 3, "NodeUnknown: Node node-a"},
	} {
		path := filepath.Join(t.TempDir(), "all.yaml")
		if err := os.WriteFile(path, []byte(test.manifest), 0o644); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		root := newRootCommand()
		root.SetArgs([]string{"check", "--manifests", path, "--node-name", "node-a"})
		root.SetOut(&out)
		code := 0
		if exit := (exitError{}); errors.As(root.ExecuteContext(t.Context()), &exit) {
			code = exit.code
		}
		if code != test.code || !strings.Contains(strings.ReplaceAll(out.String(), path, "PATH"), test.words) {
			t.Errorf("%s: exit code %d, want %d and %q:\n%s", test.name, code, test.code, test.words, &out)
		}
	}
}

// A wrong annotation is an error, unless annotations are ignored.
func TestCheckIgnoresAnnotations(t *testing.T) {
	const slice = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: web-1, labels: {kubernetes.io/service-name: web}, annotations: {beeline.io/weight: \"256\"}}\n" +
		"addressType: IPv4\nports: [{name: http, port: 8080}]\nendpoints: [{addresses: [10.0.0.1]}]\n"
	path := filepath.Join(t.TempDir(), "all.yaml")
	if err := os.WriteFile(path, []byte(slice), 0o644); err != nil {
		t.Fatal(err)
	}
	for ignore, want := range map[string]bool{"": true, " --ignore-annotations": false} {
		var out bytes.Buffer
		root := newRootCommand()
		root.SetArgs(strings.Fields("check --manifests " + path + " --node-name node-a" + ignore))
		root.SetOut(&out)
		root.ExecuteContext(t.Context())
		if strings.Contains(out.String(), "beeline.io/weight") != want {
			t.Errorf("check%s prints\n%s", ignore, &out)
		}
	}
}

// check judges the flags as an agent does that starts on this machine.
func TestCheckOfThisMachine(t *testing.T) {
	manifest := filepath.Join(t.TempDir(), "all.yaml")
	if err := os.WriteFile(manifest, []byte("# nothing yet\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		flags string
		code  int
		words string
	}{
		{"--devices=nothing0", exitErrors, "DeviceNotFound: --devices nothing0: no such device"},
		{"--devices=lo", exitErrors, "DeviceUnsuitable: --devices lo: lo is the loopback device"},
		{"--devices=nothing0 --edge-mode=off", 0, "All is well."},
		{"--offload-devices=nothing0", exitErrors, "OffloadDeviceMissing: --offload-devices nothing0: no such device"},
		{"--cgroup-root=/proc", exitUsage, "--cgroup-root /proc: not a cgroup v2 directory"},
		{"--cgroup-root=/nowhere", exitUsage, "--cgroup-root /nowhere: not found"},
	} {
		var out bytes.Buffer
		root := newRootCommand()
		root.SetArgs(append([]string{"check", "--manifests", manifest, "--node-name=node-a"}, strings.Fields(test.flags)...))
		root.SetOut(&out)
		err := root.ExecuteContext(t.Context())
		code := 0
		if exit := (exitError{}); errors.As(err, &exit) {
			code = exit.code
			fmt.Fprint(&out, err)
		}
		if code != test.code || !strings.Contains(out.String(), test.words) {
			t.Errorf("%s: exit code %d, want %d and %q:\n%s", test.flags, code, test.code, test.words, &out)
		}
	}
}
