// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/needs"
	"beeline.io/beeline/test/node"
)

// The exit code distinguishes a usage error, a command that did not run and the command's own code.
func TestExitCodes(t *testing.T) {
	needs.Root(t)
	program, name := node.LabProgram(t), fmt.Sprintf("lab-test-%d", os.Getpid())
	t.Cleanup(func() {
		if err := lab.Down(name); err != nil {
			t.Error(err)
		}
	})
	for _, c := range []struct {
		args   []string
		code   int
		output string // a part of it
	}{
		{[]string{"up", "--name", name}, 0, "lab " + name + " is up: 10 hosts"},
		{[]string{"up", "--name", name}, 0, "is already up"},
		{[]string{"list"}, 0, name},
		{[]string{"list", "-o", "yaml"}, 0, "name: " + name},
		{[]string{"list", "-o", "xml"}, exitUsage, `--output "xml": valid formats are table, json, yaml`},
		{[]string{"exec", "--name", name, "a1", "--", "sh", "-c", "exit 5"}, 5, ""},
		{[]string{"exec", "--name", name, "a1", "--", "no-such-command"}, exitNotFound, "not found"},
		{[]string{"exec", "--name", name, "a1", "--", "/"}, exitNotRun, ""},
		{[]string{"exec", "--name", name, "a9", "--", "true"}, exitUsage, `has no host "a9": it has `},
		{[]string{"exec", "--name", name, "a1"}, exitUsage, "requires at least 2 arg(s)"},
		{[]string{"exec", "--name", name + "x", "a1", "true"}, exitFailure, "make it with `beeline-lab up --name"},
		{[]string{"upp"}, exitUsage, `unknown command "upp"`},
		{[]string{"up", "--servants"}, exitUsage, "unknown flag: --servants"},
	} {
		text, err := exec.CommandContext(t.Context(), program, c.args...).CombinedOutput()
		code := 0
		if failed := (*exec.ExitError)(nil); errors.As(err, &failed) {
			code = failed.ExitCode()
		} else if err != nil {
			t.Fatal(err)
		}
		if code != c.code || !strings.Contains(string(text), c.output) {
			t.Errorf("%v: exit code %d, want %d; printed, without %q:\n%s", c.args, code, c.code, c.output, text)
		}
	}
}

// `list -o json` contains the paths that an agent needs, and is an empty list without labs.
func TestListJSON(t *testing.T) {
	var empty strings.Builder
	if err := write(&empty, "json", []labView{}); err != nil || strings.TrimSpace(empty.String()) != "[]" {
		t.Errorf("without labs it prints %q (%v)", empty.String(), err)
	}
	l := lab.New(t)
	labs, err := lab.List()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(labs, func(s lab.Status) bool { return s.Name == l.Name })
	if i < 0 {
		t.Fatalf("lab %s is not listed", l.Name)
	}
	var out strings.Builder
	if err := write(&out, "json", []labView{viewLab(labs[i])}); err != nil {
		t.Fatal(err)
	}
	var views []labView
	if err := json.Unmarshal([]byte(out.String()), &views); err != nil {
		t.Fatal(err)
	}
	for _, h := range views[0].Hosts {
		if h.Name == "node-a" && (h.BPFFS == "" || h.RunDir == "" || h.CgroupRoot == "") {
			t.Errorf("node-a lacks a path: %+v", h)
		}
	}
	if len(views[0].Hosts) != 10 {
		t.Errorf("%d hosts, want 10", len(views[0].Hosts))
	}
}

func TestMain(m *testing.M) {
	lab.Main()
	os.Exit(m.Run())
}
