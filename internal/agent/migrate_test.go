// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// docs/operate/migrate.md has a row for every flag of kube-proxy, and the flags that it names exist.
// testdata/kube-proxy-flags.txt has the flags of kube-proxy 1.36.3 --help, and the deprecated ones that it does
// not print.
func TestEveryFlagOfKubeProxyIsMapped(t *testing.T) {
	flags, err := os.ReadFile("testdata/kube-proxy-flags.txt")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../../docs/operate/migrate.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(text), "## Every flag")
	if !found {
		t.Fatal("docs/operate/migrate.md has no section \"Every flag\"")
	}
	own := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	new(Config).AddFlags(own)
	var mapped []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(--[a-z0-9-]+)` \\| (.*?) \\| (.*?) ?\\|$").FindAllStringSubmatch(table, -1) {
		mapped = append(mapped, row[1])
		name, isFlag := strings.CutPrefix(strings.Trim(row[2], "`"), "--")
		switch {
		case isFlag && own.Lookup(name) == nil:
			t.Errorf("%s: the agent has no flag --%s", row[1], name)
		case row[2] == "-" && row[3] == "":
			t.Errorf("%s: neither a replacement nor a reason", row[1])
		case !isFlag && row[2] != "-" && !strings.HasPrefix(row[2], "`beeline "):
			t.Errorf("%s: %q is neither a flag nor a command", row[1], row[2])
		}
	}
	if want := strings.Fields(string(flags)); !slices.Equal(mapped, want) {
		for _, flag := range want {
			if !slices.Contains(mapped, flag) {
				t.Errorf("%s is not mapped", flag)
			}
		}
		t.Errorf("mapped, in this order: %q; want %q", mapped, want)
	}
	for _, flag := range regexp.MustCompile("`--([a-z-]+)").FindAllStringSubmatch(table, -1) {
		if own.Lookup(flag[1]) == nil && !slices.Contains(mapped, "--"+flag[1]) {
			t.Errorf("--%s is a flag of neither", flag[1])
		}
	}
}
