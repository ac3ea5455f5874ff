// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"beeline.io/beeline/internal/cluster/service"
)

func symlink(t *testing.T, target, name string) {
	t.Helper()
	// By renaming, so that the name always exists.
	if err := os.Symlink(target, name+".new"); err != nil {
		t.Fatal(err)
	}
	rename(t, name+".new", name)
}

// configMap lays out a directory as the kubelet mounts a ConfigMap: the files are links through ..data, which
// is a link to a directory that is never modified.
func configMap(t *testing.T, dir string, generation int, files map[string]string) {
	t.Helper()
	real := fmt.Sprintf("..generation_%d", generation)
	if err := os.Mkdir(filepath.Join(dir, real), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, data := range files {
		overwrite(t, filepath.Join(dir, real, name), data)
	}
	symlink(t, real, filepath.Join(dir, "..data"))
	for name := range files {
		if _, err := os.Lstat(filepath.Join(dir, name)); err != nil {
			symlink(t, "..data/"+name, filepath.Join(dir, name))
		}
	}
	if generation > 1 {
		remove(t, dir, fmt.Sprintf("..generation_%d", generation-1))
	}
}

// The swap of ..data is noticed, whichever name inside the mount the source has.
func TestConfigMap(t *testing.T) {
	for _, path := range []string{"", "a.yaml", "..data", "..data/a.yaml"} {
		t.Run("mount/"+path, func(t *testing.T) {
			dir := t.TempDir()
			configMap(t, dir, 1, map[string]string{"a.yaml": web})
			f := follow(t, New(filepath.Join(dir, path)))
			f.want("+web")
			for i := 2; i < 6; i++ {
				ip := fmt.Sprintf("10.96.0.%d", i)
				configMap(t, dir, i, map[string]string{"a.yaml": named("web", ip)})
				f.until("generation "+ip, func() bool { return f.clusterIP("web") == ip })
				if len(f.objects) != 1 {
					t.Fatalf("objects %v", f.names())
				}
			}
		})
	}
}

// A read never mixes two states of a mounted ConfigMap.
func TestConfigMapIsReadWhole(t *testing.T) {
	dir := t.TempDir()
	names := []string{"a", "b", "c", "d"}
	generation := func(i int) {
		files := make(map[string]string)
		for n, name := range names {
			files[name+".yaml"] = named(name, fmt.Sprintf("10.9%d.%d.1", n, i%200))
		}
		configMap(t, dir, i, files)
	}
	generation(1)
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 2; !stop.Load() && !t.Failed(); i++ {
			generation(i)
			time.Sleep(2 * time.Millisecond)
		}
	}()
	defer func() { stop.Store(true); <-done }()

	s, good := New(dir), make(map[string]bool)
	for end := time.Now().Add(deadline); len(good) < 50 && time.Now().Before(end); {
		st, err := s.Load()
		if err != nil {
			if !strings.Contains(err.Error(), "attempts to read it") {
				t.Fatal(err)
			}
			continue
		}
		ips := make(map[string]bool)
		for _, o := range st.Objects {
			ips[o.(*service.Service).ClusterIPs[0][len("10.90."):]] = true // of the generation
		}
		if len(ips) != 1 || len(st.Objects) != len(names) {
			t.Fatalf("mixed states: %v", ips)
		}
		for ip := range ips {
			good[ip] = true
		}
	}
	if len(good) < 50 {
		t.Errorf("only %d states seen", len(good))
	}
}

// Links on the way to the manifests, and in their directory, may be replaced.
func TestSymlinks(t *testing.T) {
	root := t.TempDir()
	at := func(name ...string) string { return filepath.Join(append([]string{root}, name...)...) }
	for _, name := range []string{"one", "two", "elsewhere", "etc"} {
		if err := os.Mkdir(at(name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, at("one"), "web.yaml", web)
	write(t, at("two"), "web.yaml", named("web", "10.96.0.2"))
	write(t, at("elsewhere"), "b.yaml", named("b", "10.96.0.3"))
	symlink(t, "../one", at("etc", "current"))
	symlink(t, at("etc", "current"), at("manifests"))
	symlink(t, "../elsewhere/b.yaml", at("one", "b.yaml"))

	f := follow(t, New(at("manifests")))
	f.want("+b +web")
	write(t, at("elsewhere"), "b.yaml", named("b", "10.96.0.33")) // the target of a link in the folder
	f.want("~b")
	symlink(t, "../two", at("etc", "current")) // a link in the folder's path
	f.want("-b ~web")
	write(t, at("two"), "web.yaml", named("web", "10.96.0.22")) // in the new folder
	f.want("~web")
	symlink(t, "one", at("manifests")) // the folder's name
	f.want("+b ~web")
}
