// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The agent's binary contains no package of the lab, the tests or the benchmark.
func TestImports(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	if err != nil || !strings.Contains(string(out), "beeline.io/beeline/internal/bpf\n") {
		t.Fatalf("go list -deps: %v, and it printed %q", err, out)
	}
	for _, folder := range []string{"test/", "bench", "cmd/beeline-lab"} {
		if strings.Contains(string(out), "beeline.io/beeline/"+folder) {
			t.Errorf("cmd/beeline imports packages of %s", folder)
		}
	}
}

// Commands that ask an agent import api, those that work without one offline and explain, beside packages of types and
// words. Those that make, check or remove an agent import it; mesh verify and sessions look at processes as it does.
func TestImportsOfCommands(t *testing.T) {
	all := []string{"api", "bpf", "cluster/service", "cluster/source", "conntrack", "offline", "report/assess", "report/condition", "report/explain", "tables/reconcile",
		"util/plural", "util/printable", "util/suggest"}
	further := map[string][]string{
		"agent.go": {"agent", "component"}, "check.go": {"agent"}, "main.go": {"agent"},
		"cleanup.go":     {"agent", "bpf/pinfs", "cluster/source/kube"},
		"mesh_verify.go": {"shortcut/mesh"}, "mesh_sessions.go": {"shortcut/mesh/hoststack"},
	}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range file.Imports {
			path, _ := strconv.Unquote(i.Path.Value)
			path, own := strings.CutPrefix(path, "beeline.io/beeline/internal/")
			if own && !slices.Contains(all, path) && !slices.Contains(further[name], path) {
				t.Errorf("%s imports internal/%s", name, path)
			}
		}
	}
}
