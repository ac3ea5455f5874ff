// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bytes"
	"testing"
)

// Any file is read without a panic and in bounded time, and is invalid or yields objects; lines in problems
// exist in the file.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		web, webSlice, web + "---\n" + webSlice, "# a\n---\n" + web + "...\n",
		"apiVersion: v1\nkind: List\nitems:\n- &a {apiVersion: v1, kind: Pod, metadata: {name: a}}\n- *a\n",
		"apiVersion: v1\nkind: Node\nmetadata: {name: a, creationTimestamp: x}\nspec: {podCIDRs: [1.2.3.4/5]}\n",
		"apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: a}\nspec: {cidrs: [10.0.0.0/8]}\n",
		"a: &a {<<: [*a], b: *a}\n<<: *a\n", "%YAML 1.1\n--- |\n a\n---\n", "\ufeff{", "a: !!binary x\n? [b]\n: c\n",
		`{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "\ud83d\ude00"}} {"a": [1, 2.5e3, null]}`,
		"apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{ports: [{hostPort: 1, containerPort: 2}], resources: {limits: {cpu: 1e3}}}]}\n",
	} {
		f.Add([]byte(seed), false)
		f.Add([]byte(seed), true)
	}
	lim := defaultLimits
	lim.alias = 1000 // so that expensive input hits the limit soon
	f.Fuzz(func(t *testing.T, data []byte, isJSON bool) {
		name := "x.yaml"
		if isJSON {
			name = "x.json"
		}
		parsed := parse(name, data, lim)
		lines := 1
		for _, end := range []string{"\n", "\r", "\u0085", "\u2028", "\u2029"} { // all of them are line ends in YAML 1.1
			lines += bytes.Count(data, []byte(end))
		}
		for _, p := range parsed.problems {
			if p.File != name || p.Reason == "" || p.Line < 1 || p.Line > lines {
				t.Errorf("problem %+v in %d lines", p, lines)
			}
		}
		for _, o := range parsed.objects {
			ref := o.object.Ref()
			if ref.Name == "" || o.line < 1 || o.line > lines {
				t.Errorf("object %s on line %d of %d", ref, o.line, lines)
			}
		}
		if len(bytes.Trim(data, blank)) == 0 && len(parsed.problems)+len(parsed.objects) > 0 {
			t.Errorf("an empty file became %v, %v", parsed.objects, parsed.problems)
		}
	})
}

// The documents of a file are all of it except empty parts, in order, with their lines.
func FuzzSplit(f *testing.F) {
	for _, seed := range []string{"", "a", "---", "---\n", "a\n---\nb", "--- a\n---b\n---\tc\n", "%YAML 1.1\n---\na\n...\n---\n#\n---\r\nd"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		at, line := 0, 1
		for _, doc := range split(data) {
			i := bytes.Index(data[at:], doc.data)
			if i < 0 || len(doc.data) == 0 {
				t.Fatalf("%q is not in the rest, %q", doc.data, data[at:])
			}
			if i > 0 {
				t.Errorf("%q is lost", data[at:at+i])
			}
			if doc.line != line {
				t.Errorf("%q is on line %d, not %d", doc.data, line, doc.line)
			}
			at += i + len(doc.data)
			line += bytes.Count(doc.data, []byte("\n"))
		}
		for _, rest := range bytes.Split(data[at:], []byte("\n")) {
			rest = bytes.Trim(rest, blank)
			if isMarker(rest) {
				rest = bytes.Trim(rest[3:], blank)
			}
			if len(rest) > 0 && rest[0] != '#' && rest[0] != '%' {
				t.Errorf("%q is lost", rest)
			}
		}
	})
}
