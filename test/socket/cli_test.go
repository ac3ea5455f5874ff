// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"sigs.k8s.io/yaml"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/test/node"
)

// beeline runs the program on node-a, without the flags of any agent.
func (w *world) beeline(args ...string) (out string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	text, err := w.Host("node-a").Command(ctx, append([]string{program}, args...)...).Output()
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return string(text), err
}

// startCLIWorld has Services of several kinds, two with the same name.
func startCLIWorld(t *testing.T) *world {
	t.Helper()
	w := startWorld(t, "node-a")
	s, slices := w.balanced("web", 1, "a2 b1")
	s.Spec.LoadBalancerSourceRanges = []string{"10.10.0.0/16", "fd00:10::/32"}
	w.write("web", objects(s, slices)...)
	w.write("sticky", objects(w.sticky("sticky", 2, "b1", 600))...)
	other, endpoints := w.web("sticky", 3, "a1")
	other.Namespace = "other"
	for _, slice := range endpoints {
		slice.Namespace = "other"
	}
	w.apply("other", objects(other, endpoints)...)
	return w
}

// Every table is the same in JSON and YAML, from the agent and from the pins.
func TestCLIFormatsAgree(t *testing.T) {
	w := startCLIWorld(t)
	for _, command := range []string{"status", "service list", "service show default/web", "backend list"} {
		t.Run(command, func(t *testing.T) {
			args := strings.Fields(command)
			shown := map[string]any{}
			for _, from := range []string{"agent", "maps"} {
				for _, format := range []string{"json", "yaml"} {
					shown[from+" "+format] = w.show(t, append(args, "-o", format), from == "maps")
				}
				if command == "status" { // its values change
					for _, format := range []string{" json", " yaml"} {
						shown[from+format] = slices.Sorted(maps.Keys(shown[from+format].(map[string]any)))
					}
				}
				if !reflect.DeepEqual(shown[from+" json"], shown[from+" yaml"]) {
					t.Errorf("from the %s, JSON says\n%v\nand YAML\n%v", from, shown[from+" json"], shown[from+" yaml"])
				}
			}
			if command == "status" {
				return // only the agent knows most of it
			}
			want := withoutAgent(shown["agent json"])
			if got := shown["maps json"]; !reflect.DeepEqual(got, want) {
				t.Errorf("the maps say\n%v\nwant, as the agent does,\n%v", got, want)
			}
		})
	}
}

// show runs a command and decodes its output; without an agent, status exits with an error.
func (w *world) show(t *testing.T, args []string, fromMaps bool) any {
	t.Helper()
	if fromMaps {
		args = append(args, "--pins")
	}
	out, err := w.agent().CLI(args...)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && fromMaps && args[0] == "status" && exit.ExitCode() == 3 {
		err = nil
	}
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	var value any
	if err := yaml.Unmarshal([]byte(out), &value); err != nil {
		t.Fatalf("%v prints %q: %v", args, out, err)
	}
	return value
}

// withoutAgent removes what is not in the tables: the agent's view of each object.
func withoutAgent(value any) any {
	switch v := value.(type) {
	case []any:
		for i := range v {
			v[i] = withoutAgent(v[i])
		}
	case map[string]any:
		for _, key := range []string{"state", "reasons", "problems", "refusals"} {
			delete(v, key)
		}
		if items, list := v["items"]; list {
			v["items"] = withoutAgent(items)
		}
	}
	return value
}

// Tables for people contain what they look for.
func TestCLITables(t *testing.T) {
	w := startCLIWorld(t)
	if _, err := ask(w.Host("a1"), ipv4, ipv4.clusterIP(2)); err != nil {
		t.Fatal(err)
	}
	cgroup := w.Host("node-a").CgroupRoot
	check := func(command string, texts ...string) {
		t.Helper()
		out, err := w.agent().CLI(strings.Fields(command)...)
		if !w.agent().Running() && strings.HasPrefix(command, "status") {
			wantExit(t, err, 3)
		} else if err != nil {
			t.Errorf("%s: %v", command, err)
		}
		for _, text := range texts {
			if !strings.Contains(out, text) {
				t.Errorf("%s does not contain %q:\n%s", command, text, out)
			}
		}
	}
	check("status", "All is well.", "Services:", "1 to Services", cgroup)
	check("status -v", "All is well.", "connect4", "getpeername6", cgroup, "max-frontends", "bpf_loop", "1 to Services")
	check("service list", "default/web", "other/sticky", "10.96.0.1:80", "[fd00:96::1]:80", "203.0.113.10:80",
		"2 backends", "reject", "applied")
	check("service show web", "ClusterIP 10.96.0.1:80/TCP", "LoadBalancer", "admitted sources: 10.10.0.0/16",
		"10.10.1.12:8080", "share 1/2", "on this node")
	check("service show other/sticky", "10.96.0.3", "reject")
	check("service show default/sticky", "session affinity: 10m0s")
	check("backend list", "10.10.1.12:8080", "[fd00:10:2::11]:8080", "default/sticky, default/web")
	w.must(w.agent().Stop())
	check("status", "1 error.", "AgentNotRunning: no agent is running: the attached programs keep serving", "13 programs attached", "1 to Services")
	check("status -v --pins", "no agent is running", "connect4", cgroup, "1 to Services")
	check("service list --pins", "default/web", "2 backends")
	check("backend list --pins", "10.10.1.12:8080")
}

// status says within a second that an agent does not answer, or that it has ended, and shows what its pins say. monitor
// says what to do, and cleanup ends a stopped agent.
func TestStatusOfSilentAgent(t *testing.T) {
	w := startWorld(t, "node-a")
	process, err := os.FindProcess(w.agent().PID())
	w.must(err)
	for _, c := range []struct {
		name, want string
		do         func() error
	}{
		{"stopped", "AgentNotAnswering: the agent, pid " + fmt.Sprint(process.Pid) + ", has the pins, but does not answer", func() error { return process.Signal(syscall.SIGSTOP) }},
		{"continued", "All is well.", func() error { return process.Signal(syscall.SIGCONT) }},
		{"killed", "AgentNotRunning: no agent is running: the attached programs keep serving", w.agent().Kill},
	} {
		w.must(c.do())
		out, err := w.agent().CLI("status")
		if !strings.Contains(out, c.want) {
			t.Errorf("%s: status has no %q:\n%s", c.name, c.want, out)
		}
		if c.name == "continued" {
			w.must(err)
			continue
		}
		wantExit(t, err, 3)
		if head, _, _ := strings.Cut(out, "\n"); head != "1 error." {
			t.Errorf("%s: status begins with %q", c.name, head)
		}
	}
	w.must(w.agent().Start())
	stopped, err := os.FindProcess(w.agent().PID())
	w.must(err)
	w.must(stopped.Signal(syscall.SIGSTOP))
	_, err = w.agent().CLI("monitor")
	wantExit(t, err, 1, "does not answer: it alone may read the events", "restart it")
	_, err = w.agent().CLI("monitor", "--pins")
	wantExit(t, err, 1, fmt.Sprintf("(pid %d), and it alone may read the events: leave --pins out", stopped.Pid), "restart it")
	out, err := w.agent().CLI("cleanup", "--stop-agent")
	if want := fmt.Sprintf("stopped the agent with pid %d", stopped.Pid); err != nil || !strings.Contains(out, want) {
		t.Errorf("cleanup --stop-agent with a stopped agent: %v, %q; want %q", err, out, want)
	}
	_, err = w.agent().CLI("status")
	wantExit(t, err, 1, "no agent answers on", w.agent().Socket())
}

// Exit codes: 0 done, 1 failed, 2 wrong usage, 3 errors, 4 only warnings; near misses get a suggestion.
func TestCLIExitCodes(t *testing.T) {
	w := startCLIWorld(t)
	config := filepath.Join(t.TempDir(), "beeline.yaml")
	if err := os.WriteFile(config, []byte("manifest: /nowhere\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	socket, pins := "--agent-socket="+w.agent().Socket(), "--pins="+w.agent().BPFFS()
	for _, c := range []struct {
		args  []string
		code  int
		texts []string
	}{
		{[]string{"status", socket}, 0, nil},
		{[]string{"version"}, 0, nil},
		{[]string{"--help"}, 0, nil},
		{[]string{"service", "show", "sticky", socket}, 1, []string{"namespace/name"}},
		{[]string{"service", "show", "none", socket}, 1, []string{"none", "service list"}},
		{[]string{"status", "--agent-socket=/nowhere/agent.sock"}, 1, []string{"/nowhere/agent.sock", "--pins"}},
		{[]string{"status", "--pins=/sys/fs/bpf/nowhere"}, 1, []string{"/sys/fs/bpf/nowhere"}},
		{[]string{"status", "--agent-sockte=/x"}, 2, []string{`"agent-socket"`}},
		{[]string{"status", socket, "more"}, 2, []string{"more"}},
		{[]string{"status", socket, "-o", "xml"}, 2, []string{"table, json or yaml"}},
		{[]string{"statsu"}, 2, []string{`"status"`}},
		{[]string{"service", "lst"}, 2, []string{`"list"`}},
		{[]string{"backend", "lits"}, 2, []string{`"list"`}},
		{[]string{"service", "show", socket}, 2, nil},
		{[]string{"agent", "--manifest=/x"}, 2, []string{`"manifests"`}},
		{[]string{"agent"}, 2, []string{"--manifests"}},
		{[]string{"agent", "--config=" + config, pins}, 2, []string{config, `"manifest"`, `"manifests"`}},
		{[]string{"agent", "--config=/nowhere.yaml"}, 2, []string{"/nowhere.yaml"}},
		{[]string{"agent", "--manifests=/x", "--max-slots=0"}, 2, []string{"--max-slots"}},
		{[]string{"agent", "--manifests=/x", "--nodeport-addresses=lan"}, 2, []string{"--nodeport-addresses", "lan"}},
	} {
		t.Run(strings.Join(c.args[:min(2, len(c.args))], " "), func(t *testing.T) {
			_, err := w.beeline(c.args...)
			if c.code == 0 {
				if err != nil {
					t.Errorf("%v: %v", c.args, err)
				}
				return
			}
			wantExit(t, err, c.code, c.texts...)
		})
	}
}

// The configuration file uses the flags' names, and flags override it.
func TestCLIConfigurationFile(t *testing.T) {
	w := newWorld(t, "node-a")
	a := w.agent()
	w.write("web", objects(w.public("web", 1, "b1"))...)
	config := filepath.Join(t.TempDir(), "beeline.yaml")
	text := fmt.Sprintf("manifests: /nowhere\nmax-frontends: 777\nmax-slots: 1e5\nlocalhost-nodeports: false\n"+
		"nodeport-addresses:\n- %s\n- %s\naudit-interval: 1h\nlog-format: json\n", single(w.Host("node-a").Addr4), "192.0.2.0/24")
	w.must(os.WriteFile(config, []byte(text), 0o644))
	a.Flags = []string{"--config", config, "--max-slots=4321"} // and --manifests, which all agents here have
	w.start()
	status, err := a.Status()
	w.must(err)
	limits := map[string]uint32{}
	for _, f := range status.Tables {
		limits[f.Table] = f.Limit
	}
	if limits["frontends"] != 777 || limits["slots"] != 4321 {
		t.Errorf("limits %v, want 777 frontends as the file says and 4321 slots as the flag says", limits)
	}
	w.wantMeet(t, "node-a", ipv4, ipv4.loopbacks()[0], closed)
	w.wantMeet(t, "node-a", ipv4, ipv4.choose(w.Host("node-a").Addr4.String(), "", nodePort), "b1")
	if log := a.Log.(*node.Log).String(); !json.Valid([]byte(strings.Split(log, "\n")[0])) {
		t.Errorf("the log is not JSON, as the file says: %s", log)
	}
}

// The completion script is valid for bash, and knows the agent's flags.
func TestCLICompletion(t *testing.T) {
	w := newWorld(t)
	script, err := w.beeline("completion", "bash")
	w.must(err)
	bash := exec.Command("bash", "-n")
	bash.Stdin = strings.NewReader(script)
	var errOut bytes.Buffer
	bash.Stderr = &errOut
	if err := bash.Run(); err != nil || len(script) == 0 {
		t.Errorf("bash -n of %d bytes: %v\n%s", len(script), err, &errOut)
	}
	for _, c := range []struct{ args, want string }{
		{"__complete st", "status"},
		{"__complete service l", "list"},
		{"__complete agent --max-f", "--max-frontends"},
		{"__complete status -o j", "json"},
	} {
		out, err := w.beeline(strings.Fields(c.args)...)
		if err != nil || !strings.Contains(out, c.want) {
			t.Errorf("%s completes to %q (%v), want %s", c.args, out, err, c.want)
		}
	}
}

// An object's problems are shown where people look for them.
func TestCLIShowsProblems(t *testing.T) {
	w := startWorld(t, "node-a")
	w.sameExternalIP()
	out, err := w.agent().CLI("service", "show", "second")
	if err != nil || !strings.Contains(out, "belongs to Service default/first") {
		t.Errorf("service show (%v) does not name the owner of the external IP:\n%s", err, out)
	}
	var status api.Status
	out, err = w.agent().CLI("status", "-o", "json")
	if exit := (&exec.ExitError{}); !errors.As(err, &exit) || exit.ExitCode() != 3 {
		t.Errorf("status with an object that has lost a claim: %v", err)
	}
	if err := json.Unmarshal([]byte(out), &status); err != nil || len(status.ObjectsWithProblems) != 1 || status.ObjectsWithProblems[0].Owner.Name != "second" {
		t.Errorf("status (%v) names %+v, want the Service default/second", err, status.ObjectsWithProblems)
	}
}
