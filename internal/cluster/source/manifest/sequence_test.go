// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"beeline.io/beeline/internal/cluster/service"
)

// Whatever changes in the files, the events lead to the content of all files together, and changes made while a
// file was invalid are not lost: incremental and full computation agree.
func TestSequenceAgreesWithJoin(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	content := func() string {
		switch r.IntN(12) {
		case 0:
			return "bad"
		case 1:
			return "apiVersion: v1\nkind: Secret\n" // a warning
		case 2:
			return "# nothing\n"
		}
		text := ""
		for range 1 + r.IntN(2) {
			text += "---\n" + named(fmt.Sprintf("s%d", r.IntN(8)), fmt.Sprintf("10.96.0.%d", 1+r.IntN(24)))
		}
		return text
	}
	good, bad := 0, 0
	for range 200 {
		s, q := New("folder"), newSequence()
		s.files = map[string]*file{}
		held := map[service.Ref]service.Object{}
		for step := range 30 {
			names := map[string]bool{}
			for range r.IntN(3) {
				name := fmt.Sprintf("%d.yaml", r.IntN(5))
				names[name] = true
				if r.IntN(3) == 0 {
					delete(s.files, name)
				} else {
					s.files[name] = parse(name, []byte(content()), s.limits)
				}
			}
			if step == 0 || r.IntN(4) == 0 {
				names = nil // all were read
			}
			ev, _ := q.next(s, names, nil)
			for _, c := range ev.Changes {
				if old, there := held[c.Ref]; c.Object == nil && !there || there && reflect.DeepEqual(old, c.Object) {
					t.Fatalf("%s did not change", c.Ref)
				}
				if held[c.Ref] = c.Object; c.Object == nil {
					delete(held, c.Ref)
				}
			}
			want := s.join()
			if diff := cmp.Diff(want.problems, ev.Problems); diff != "" {
				t.Fatalf("problems (-all files +event):\n%s", diff)
			}
			if want.problems.Errors() > 0 {
				bad++
				if len(ev.Changes) > 0 {
					t.Fatalf("%v despite %v", ev.Changes, want.problems)
				}
				continue
			}
			good++
			if !maps.EqualFunc(held, want.objects, func(a, b service.Object) bool { return reflect.DeepEqual(a, b) }) {
				t.Fatalf("objects %v, want %v", held, want.objects)
			}
		}
	}
	if good < 100 || bad < 100 {
		t.Errorf("%d good states and %d bad: not both were tried", good, bad)
	}
}

// Single files are read only if nothing else can have changed.
func TestReadSome(t *testing.T) {
	start := map[string]string{"a.yaml": named("a", "10.96.0.1"), "b.yaml": named("b", "10.96.0.2")}
	for _, c := range []struct {
		name   string
		change func(dir string)
		heard  []string
		want   bool
		read   []string // the Services afterwards, if so
	}{
		{"replaced", func(dir string) { write(t, dir, "a.yaml", named("c", "10.96.0.3")) }, []string{"a.yaml"}, true, []string{"b", "c"}},
		{"new", func(dir string) { write(t, dir, "c.yaml", named("c", "10.96.0.3")) }, []string{"c.yaml"}, true, []string{"a", "b", "c"}},
		{"removed", func(dir string) { remove(t, dir, "a.yaml") }, []string{"a.yaml"}, true, []string{"b"}},
		{"nothing", func(string) {}, []string{"a.yaml", "never.yaml"}, true, []string{"a", "b"}},
		{"one without a notification", func(dir string) { write(t, dir, "b.yaml", named("c", "10.96.0.3")) }, []string{"a.yaml"}, true, []string{"a", "b"}},
		{"a link", func(dir string) { symlink(t, "b.yaml", filepath.Join(dir, "c.yaml")) }, []string{"c.yaml"}, false, nil},
		{"another folder", func(dir string) {
			rename(t, dir, dir+".away")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			write(t, dir, "a.yaml", start["a.yaml"])
		}, []string{"a.yaml"}, false, nil},
		{"no folder", func(dir string) { rename(t, dir, dir+".away") }, []string{"a.yaml"}, false, nil},
		{"too much", func(dir string) { write(t, dir, "c.yaml", "# "+string(make([]byte, 5000))) }, []string{"c.yaml"}, false, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "manifests")
			rename(t, folder(t, start), dir)
			s := New(dir)
			s.limits.folder = 4096
			if changed := (changes{all: true}); s.readSome(changed) || s.readAll(changed) != nil {
				t.Fatal("the first read was not of all files")
			}
			c.change(dir)
			changed := changes{names: map[string]bool{}}
			for _, name := range c.heard {
				changed.names[name] = true
			}
			if got := s.readSome(changed); got != c.want {
				t.Fatalf("read alone: %v, want %v", got, c.want)
			}
			if !c.want {
				return
			}
			var names []string
			for ref := range s.join().objects {
				names = append(names, ref.Name)
			}
			slices.Sort(names)
			if diff := cmp.Diff(c.read, names); diff != "" {
				t.Error(diff)
			}
		})
	}
}
