// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// within fails a test if f does not return in time: a file must not block the agent.
func within(t *testing.T, limit time.Duration, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(limit):
		t.Fatalf("not done after %s", limit)
	}
}

// A file that is not regular is an error; opening it could block or have side effects.
func TestSpecialFiles(t *testing.T) {
	const rest = "; only regular files are read: remove it, or give it a name that does not end in .yaml, .yml or .json"
	for _, test := range []struct {
		name string
		make func(path string) error
		want string
	}{
		{"named pipe", func(path string) error { return syscall.Mkfifo(path, 0o644) }, "is a named pipe" + rest},
		{"link to a device", func(path string) error { return os.Symlink("/dev/zero", path) }, "is a device" + rest},
		{"socket", func(path string) error {
			l, err := net.Listen("unix", path)
			if err == nil {
				t.Cleanup(func() { l.Close() })
			}
			return err
		}, "is a socket" + rest},
		{"link to nothing", func(path string) error { return os.Symlink("nothing", path) },
			"cannot be read: the file that it links to does not exist; restore that, or remove the link"},
		{"link to itself", func(path string) error { return os.Symlink(filepath.Base(path), path) },
			"cannot be read: it links to itself; remove the link"},
	} {
		t.Run(test.name, func(t *testing.T) {
			// Not t.TempDir, whose name can be too long for a socket.
			dir, err := os.MkdirTemp("", "beeline")
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(dir)
			path := filepath.Join(dir, "x.yaml")
			if err := test.make(path); err != nil {
				t.Fatal(err)
			}
			within(t, time.Minute, func() {
				if got := problemsOf(t, dir).Error(); got != "x.yaml: "+test.want {
					t.Errorf("in a folder: %s", got)
				}
				if test.name == "link to nothing" || test.name == "link to itself" {
					return // such a file does not exist
				}
				alone := strings.Replace(test.want, rest, "; only regular files are read: set --manifests to one, or to a directory", 1)
				if got := problemsOf(t, path).Error(); got != path+": "+alone {
					t.Errorf("alone: %s", got)
				}
			})
		})
	}
}

// A name may be replaced between stat and open.
func TestFileReplacedByPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.yaml")
	if err := syscall.Mkfifo(path, 0o644); err != nil {
		t.Fatal(err)
	}
	within(t, time.Minute, func() {
		stale := entry{name: "x.yaml", path: path}
		if _, err := readFile(stale, 1); err == nil || !strings.Contains(err.Error(), "is a named pipe") {
			t.Error(err)
		}
	})
}

// What is said of a path of --manifests that is not there fits the path: a file's name, or a directory's. A file that
// was removed since the directory was listed is no link to nothing, and the next list does not have it.
func TestMissing(t *testing.T) {
	dir := t.TempDir()
	for path, want := range map[string]string{
		"x.yaml": "no such file; create it, or correct --manifests (a file with only a comment is a valid state without objects)",
		"x":      "no such file or directory; create it, or correct --manifests (an empty directory is a valid state without objects)",
		"f/x":    "cannot be read: a part of the path is no directory; correct --manifests",
	} {
		if err := os.WriteFile(filepath.Join(dir, "f"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if got := problemsOf(t, filepath.Join(dir, path)).Error(); got != filepath.Join(dir, path)+": "+want {
			t.Errorf("%s: %s, want %q", path, got, want)
		}
	}
	removed := entry{name: "x.yaml", path: filepath.Join(dir, "x.yaml"), folder: 1}
	if _, err := readFile(removed, 1); err == nil || err.Error() != vanished {
		t.Errorf("a file that was removed: %v, want %q", err, vanished)
	}
}

func TestLimits(t *testing.T) {
	many := strings.Repeat("---\n"+edit(t, web, "port: 80", "port: 0"), 20)
	for _, test := range []struct {
		name string
		set  func(*limits)
		in   map[string]string
		want string
	}{
		{"a large file", func(l *limits) { l.file = 100 }, map[string]string{"a.yaml": strings.Repeat("#", 101)},
			"a.yaml: larger than the limit of 100 bytes for one file; split it"},
		{"just not too large", func(l *limits) { l.file = 100 }, map[string]string{"a.yaml": strings.Repeat("#", 100)}, ""},
		{"large together", func(l *limits) { l.folder = 100 }, map[string]string{"a.yaml": strings.Repeat("#", 51), "b.yaml": strings.Repeat("#", 50)},
			"DIR: the files have 101 bytes together, more than the limit of 100: remove unneeded files"},
		{"a large document", func(l *limits) { l.marks = 16 }, map[string]string{"a.yaml": "# one\n---\nnull\n---\n" + web},
			"a.yaml:4: the document is too large to be read at once; split it with \"---\" lines, or into several files"},
		{"aliases", func(l *limits) { l.alias = 10 }, map[string]string{"a.yaml": edit(t, web, "  ports", "  externalIPs:\n  - &a 1.2.3.4\n"+strings.Repeat("  - *a\n", 20)+"  ports")},
			"a.yaml:19: Service default/web: " + tooManyAliases},
		{"just not too many", func(l *limits) { l.alias = 10 }, map[string]string{"a.yaml": edit(t, web, "  ports", "  externalIPs:\n  - &a 1.2.3.4\n"+strings.Repeat("  - *a\n", 10)+"  ports")}, ""},
		{"merges", func(l *limits) { l.alias = 10 }, map[string]string{"a.yaml": "a: &a {a: 1, b: 2}\nb:\n" + strings.Repeat("- <<: *a\n", 3)},
			"a.yaml:5: " + tooManyAliases},
		{"problems", func(l *limits) { l.report = 4 }, map[string]string{"a.yaml": "kind: X\napiVersion: v1\n" + many},
			strings.ReplaceAll("a.yaml: 18 more problems are not shown\n"+
				"a.yaml:11P\na.yaml:20P\na.yaml:29P", "P", ": Service default/web: spec.ports[0].port: 0: expected a port from 1 to 65535")},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := folder(t, test.in)
			s := New(dir)
			test.set(&s.limits)
			_, err := s.Load()
			if got := strings.ReplaceAll(fmt.Sprint(err), dir, "DIR"); got != test.want && (err != nil || test.want != "") {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

// Text that expands to far more than its size, or is nested deeply, takes neither much time nor memory.
func TestBombs(t *testing.T) {
	laughs := func(format string) string {
		s := "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
		for i := 1; i < 30; i++ {
			s += fmt.Sprintf("a%d: &a%d "+format+"\n", i, i, i-1)
		}
		return s
	}
	const list = "[*a%[3]d, *a%[3]d, *a%[3]d, *a%[3]d, *a%[3]d, *a%[3]d, *a%[3]d, *a%[3]d, *a%[3]d]"
	item := "- &s {apiVersion: v1, kind: Service, metadata: {name: a}, spec: {clusterIP: None}}\n"
	for name, in := range map[string]string{
		"laughs in an object": web + strings.ReplaceAll("status:\n"+laughs(list), "\na", "\n  a"),
		"laughs in fields": edit(t, web, "name: web", "name: web\n  managedFields:\n  - fieldsV1:\n      "+
			strings.ReplaceAll(laughs(list), "\n", "\n      ")),
		"merged laughs": laughs("{<<: [*a%[3]d], b%[3]d: *a%[3]d, c%[3]d: *a%[3]d}"),
		"long texts": edit(t, web, "name: web", "name: web\n  managedFields: [{fieldsV1: {a: &a "+strings.Repeat("x", 1<<20)+", b: ["+
			strings.Repeat("*a, ", 1<<16)+"]}}]"),
		"wide merges":     "a: &a {" + strings.Repeat("a: 1, ", 1<<16) + "}\nb:\n" + strings.Repeat("- <<: *a\n", 1<<16),
		"many aliases":    "apiVersion: v1\nkind: List\nitems:\n" + item + strings.Repeat("- *s\n", 1<<18),
		"Lists of a List": "apiVersion: v1\nkind: List\nitems:\n- &l {apiVersion: v1, kind: List, items: [" + strings.Repeat("{}, ", 1<<14) + "]}\n" + strings.Repeat("- *l\n", 1<<14),
		"cycle":           "apiVersion: v1\nkind: List\nitems: &i\n- {apiVersion: v1, kind: List, items: *i}\n- {apiVersion: v1, kind: List, items: *i}\n",
		"cycle in fields": edit(t, web, "name: web", "name: web\n  managedFields: [{fieldsV1: &f {a: *f, b: *f}}]"),
		"merged cycle":    "a: &a\n  b: &b {<<: *a}\n  c: {<<: [*a, *b]}\n",
		"deep":            strings.Repeat("[", 1<<20),
		"deeper":          strings.Repeat("{a: ", 5000) + strings.Repeat("}", 5000),
		"deep block":      strings.Repeat("- ", 1<<20),
		"errors":          "apiVersion: v1\nkind: List\nitems:\n" + strings.Repeat("- x\n", 1<<18),
		"fields":          web + strings.Repeat("a: b\n", 1<<18),
		"names":           web + strings.Repeat(strings.Repeat("a", 1<<10)+": b\n", 1<<10),
		"half of a list":  "apiVersion: v1\nkind: List\nitems:\n" + strings.Repeat("- {a: b}\n", 1<<15) + "- {a",
	} {
		t.Run(name, func(t *testing.T) {
			dir := folder(t, map[string]string{"x.yaml": in})
			within(t, 2*time.Minute, func() {
				problems := problemsOf(t, dir)
				if problems.Errors() == 0 || len(problems) > defaultLimits.report {
					t.Errorf("%d errors, %d problems", problems.Errors(), len(problems))
				}
			})
		})
	}
}
