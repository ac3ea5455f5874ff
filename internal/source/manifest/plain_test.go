// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

// Documents as programs write them, and similar ones that are not plain.
var plainSeeds = []string{
	"apiVersion: v1\nkind: Service\nmetadata:\n  name: many-1\nspec:\n  clusterIP: \"10.96.8.1\"\n  clusterIPs:\n    - \"10.96.8.1\"\n" +
		"  ipFamilies: [IPv4]\n  ports:\n    - name: main\n      protocol: TCP\n      port: 80\n",
	"---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: web-ipv4\n  labels:\n    kubernetes.io/service-name: web\n" +
		"addressType: IPv4\nports:\n- name: main\n  port: 8080\nendpoints:\n- addresses: [\"10.1.1.1\", 10.1.1.2]\n  conditions: {}\n  nodeName: 'node-a'\n" +
		"- addresses:\n  - fd00::1\n  conditions:\n    ready: true\n    serving: false\n",
	"kind: Node\nspec:\n  podCIDR: 10.10.1.0/24\n  podCIDRs:\n  - 10.10.1.0/24\nstatus:\n\n  addresses: []\n  images:\n   - a\n   - b:c",
}

// Insertions of mutations.
var plainPieces = []string{" ", "  ", "\n", "\n  ", "- ", "-", ":", ": ", "\"", "'", "[", "]", "{", "}", ",", ", ", "#", " #", "&a ", "*a", "!!str ", "|", ">",
	"%", "@", "`", "\\", "\t", "\r", "~", "null", "Null", "true", "True", "on", "y", "<<", "0", "1", "007", "0x1f", "1.5", "1e3", ".5", ".inf", "-1", "+1", "1_000",
	"2024-01-01", "10.0.0.1", "fd00::", "::1", "é", "---", "--- ", "...", "?", "? ", "a", "b: c", "x:y", "=", "/", "[a]", "[a,b]", "[a, b]", "{a: b}", "\"a\": b"}

// Every document accepted as plain has the tree that the YAML parser returns.
func TestPlainTreesAreThoseOfTheParser(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	plain, changed := 0, 0
	for _, seed := range plainSeeds {
		if !samePlain(t, seed) {
			t.Errorf("not accepted as plain:\n%s", seed)
		}
		for range 10_000 {
			text := seed
			for range 1 + random.IntN(3) {
				text = mutate(random, text)
			}
			if text != seed && samePlain(t, text) {
				plain++
			}
			changed++
			if t.Failed() {
				t.FailNow()
			}
		}
	}
	t.Logf("of %d changed documents %d are plain", changed, plain)
	if plain < changed/100 || plain > changed/2 {
		t.Errorf("of %d changed documents only %d are plain", changed, plain)
	}
}

// The same for the project's examples, some of which are plain.
func TestPlainExamples(t *testing.T) {
	names, err := filepath.Glob("../../../examples/*.yaml")
	if err != nil || len(names) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, doc := range split(data) {
			samePlain(t, string(doc.data))
		}
	}
}

func mutate(random *rand.Rand, text string) string {
	piece, at := plainPieces[random.IntN(len(plainPieces))], random.IntN(len(text)+1)
	switch random.IntN(4) {
	case 0: // insert a piece
		return text[:at] + piece + text[at:]
	case 1: // replace some
		return text[:at] + piece + text[min(len(text), at+1+random.IntN(4)):]
	case 2: // remove some
		return text[:at] + text[min(len(text), at+1+random.IntN(6)):]
	}
	lines := strings.SplitAfter(text, "\n")
	i := random.IntN(len(lines))
	if random.IntN(2) == 0 {
		lines[i] = strings.Repeat(" ", random.IntN(7)) + strings.TrimLeft(lines[i], " ")
	} else {
		lines[i] = lines[random.IntN(len(lines))]
	}
	return strings.Join(lines, "")
}

// samePlain reports whether a text is plain; if so, it must have the parser's tree.
func samePlain(t *testing.T, text string) bool {
	t.Helper()
	doc := document{[]byte(text), 7}
	tree, ok := plainTree(doc)
	if !ok {
		return false
	}
	trees, err := parseTrees(doc.data)
	if err != nil || len(trees) != 1 {
		t.Errorf("plain, but the parser finds %d documents (%v):\n%q", len(trees), err, text)
		return true
	}
	var left atomic.Int64
	want := trees[0].Content[0]
	if err := prepare(want, doc.line-1, &left); err != nil {
		t.Errorf("plain, but %s:\n%s", err.reason, text)
	}
	if diff := cmp.Diff(outline(want), outline(tree)); diff != "" {
		t.Errorf("different trees (-parser +plain):\n%s\n%s", diff, text)
	}
	return true
}

// outline returns all that is read of a tree.
func outline(n *yaml.Node) any {
	if n == nil {
		return nil
	}
	all := []any{fmt.Sprintf("%d %s %q style %d line %d anchor %q", n.Kind, n.Tag, n.Value, n.Style, n.Line, n.Anchor)}
	for _, c := range n.Content {
		all = append(all, outline(c))
	}
	return all
}
