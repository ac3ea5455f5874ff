// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// What becomes of a documented command.
const (
	runs    = "run"   // in a fresh clone
	parses  = "parse" // its flags exist; what it does is for tests that have a lab or a cluster
	skipped = "skip"
)

// documented are the commands in README.md and install.md, by the first pattern that matches. A command that none
// matches fails the test: whoever documents it decides here how it is tested.
var documented = []struct{ pattern, do, why string }{
	{`^make test$`, skipped, "this test is a part of it"},
	{`^make( |$)`, runs, ""},
	{`^install `, runs, "into a folder of the test"},
	{`^beeline `, parses, "it needs a node"},
	{`^skopeo `, skipped, "it needs a registry"},
	{`^(sed .* \| )?kubectl `, skipped, "it needs a cluster: other tests here apply the same files"},
	{`^(ip|sysctl) `, skipped, "it changes the machine: tests of the edge do the same in network namespaces"},
}

// The commands of README.md and install.md work in a fresh clone, in their order, as far as they need neither a
// registry nor a cluster.
func TestDocumentedCommands(t *testing.T) {
	commands := append(documentedIn(t, "README.md"), documentedIn(t, "docs/operate/install.md")...)
	if len(commands) < 20 {
		t.Fatalf("only %d commands are documented: %q", len(commands), commands)
	}
	var clone *freshClone
	if testing.Short() {
		t.Log("skipped in the short form: running the commands in a fresh clone, which builds everything (minutes)")
	} else {
		clone = newFreshClone(t)
	}
	for _, command := range commands {
		switch do, why := fate(command); {
		case do == "":
			t.Errorf("%q is documented, and `documented` in this test does not say how it is tested", command)
		case do == parses:
			wantFlags(t, command)
		case do == runs && clone != nil:
			clone.run(command)
		case do == skipped:
			t.Logf("skipped: %s: %s", command, why)
		}
	}
}

func fate(command string) (do, why string) {
	for _, d := range documented {
		if regexp.MustCompile(d.pattern).MatchString(command) {
			return d.do, d.why
		}
	}
	return "", ""
}

var (
	comments = regexp.MustCompile(`\s+#.*$`)
	// starts are the lines that begin a command; others are output, pictures, or the rest of a command.
	starts     = regexp.MustCompile(`^[a-z]+( |$)`)
	separators = regexp.MustCompile(` && |; `)
)

// documentedIn returns the commands in the blocks of a page: one for each line, and for each part around && and ;.
func documentedIn(t *testing.T, page string) (commands []string) {
	t.Helper()
	inside, plain, quoted := false, false, false // a block, one without a language, an argument of several lines
	for _, line := range strings.Split(string(read(t, sources(t, page))), "\n") {
		if strings.HasPrefix(line, "```") {
			inside, plain = !inside, line == "```"
			continue
		}
		if !inside || !plain {
			continue
		}
		begins := !quoted && starts.MatchString(line)
		quoted = quoted != (strings.Count(line, "'")%2 == 1)
		if !begins || strings.HasPrefix(line, "beeline status -v shows") {
			continue
		}
		for _, part := range separators.Split(comments.ReplaceAllString(line, ""), -1) {
			commands = append(commands, strings.TrimSpace(part))
		}
	}
	return commands
}

// wantFlags checks that a command and its flags exist: with --help nothing else happens.
func wantFlags(t *testing.T, command string) {
	t.Helper()
	args := append(strings.Fields(command)[1:], "--help")
	if out, err := exec.Command(beeline, args...).CombinedOutput(); err != nil {
		t.Errorf("%s: %v: %s", command, err, out)
	}
}

// freshClone is a clone without any product of a build. It has what is committed.
type freshClone struct {
	t           *testing.T
	folder, etc string
}

func newFreshClone(t *testing.T) *freshClone {
	t.Helper()
	c := &freshClone{t: t, folder: filepath.Join(t.TempDir(), "beeline"), etc: t.TempDir()}
	if out, err := exec.Command("git", "clone", "--quiet", sources(t, "."), c.folder).CombinedOutput(); err != nil {
		t.Fatalf("git clone: %v: %s", err, out)
	}
	t.Cleanup(func() { // `make demo` leaves its lab
		lab := exec.Command("bin/beeline-lab", "down")
		lab.Dir = c.folder
		if _, err := os.Stat(filepath.Join(c.folder, "bin/beeline-lab")); err == nil {
			if out, err := lab.CombinedOutput(); err != nil {
				t.Errorf("beeline-lab down: %v: %s", err, out)
			}
		}
	})
	return c
}

// run runs a command in the clone. Folders of the machine are those of the test.
func (c *freshClone) run(command string) {
	c.t.Helper()
	command = regexp.MustCompile(` (/etc|/usr/local)/`).ReplaceAllString(command, " "+c.etc+"$1/")
	for _, folder := range []string{"/etc/sysctl.d", "/usr/local/bin"} {
		must(c.t, os.MkdirAll(c.etc+folder, 0o755))
	}
	run := exec.Command("sh", "-c", command)
	run.Dir = c.folder
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); !strings.HasPrefix(name, "MAKE") && !strings.HasPrefix(name, "BPF_") &&
			name != "MFLAGS" && name != "BEELINE_PROGRAM" && name != "GOFLAGS" && name != "CGO_ENABLED" {
			run.Env = append(run.Env, variable)
		}
	}
	if out, err := run.CombinedOutput(); err != nil {
		c.t.Fatalf("%s: %v: %s", command, err, out)
	}
}
