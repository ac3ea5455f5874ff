// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// builder builds tests of changed sources. The sources themselves stay as they are: Go reads changed files through an
// overlay (go help build), clang and cargo read copies. Changed BPF objects are written into programs that are built
// already (patch.go).
type builder struct {
	root     string
	folder   string // for copies and test programs
	programs []bpfProgram
	rust     sync.Mutex // of the copy of hoststack/
	plain    *tree      // the unchanged sources
}

// tree is a copy of the sources with a mutant.
type tree struct {
	folder  string
	overlay map[string]string // replaced files, absolute: path in the sources, path of the replacement
	bpf     []string          // changed files of bpf/
	other   bool              // files elsewhere are changed, too

	building sync.Mutex        // of what follows
	planted  bool              // a program has the mutant
	program  string            // the changed bin/beeline, once it is built
	tests    map[string]string // programs with the tests of packages, likewise
}

func (t *tree) remove() { os.RemoveAll(t.folder) }

func newBuilder(root string) (*builder, error) {
	programs, err := bpfPrograms(root)
	if err != nil {
		return nil, err
	}
	parent := filepath.Join(root, "build/mutants")
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return nil, err
	}
	folder, err := os.MkdirTemp(parent, "work-")
	if err != nil {
		return nil, err
	}
	b := &builder{root: root, folder: folder, programs: programs}
	if b.plain, err = b.newTree(); err == nil {
		err = b.padObjects()
	}
	return b, err
}

func (b *builder) newTree() (*tree, error) {
	folder, err := os.MkdirTemp(b.folder, "tree-")
	return &tree{folder: folder, overlay: map[string]string{}, tests: map[string]string{}}, err
}

func (b *builder) close() { os.RemoveAll(b.folder) }

// plant makes a tree with a mutant.
func (b *builder) plant(m *mutant) (*tree, error) {
	changed, err := m.apply(b.root)
	if err != nil {
		return nil, err
	}
	t, err := b.newTree()
	if err != nil {
		return nil, err
	}
	t.bpf = slices.DeleteFunc(slices.Sorted(maps.Keys(changed)), func(file string) bool { return !strings.HasPrefix(file, "bpf/") })
	t.other = len(t.bpf) < len(changed)
	if len(t.bpf) > 0 {
		if err := os.CopyFS(filepath.Join(t.folder, "bpf"), os.DirFS(filepath.Join(b.root, "bpf"))); err != nil {
			return nil, err
		}
	}
	for file, text := range changed {
		path := filepath.Join(t.folder, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return nil, err
		}
		t.overlay[filepath.Join(b.root, file)] = path
	}
	return t, nil
}

// outcome is the result of a test command.
type outcome struct {
	ran    bool   // at least one test ran to its end, and was not skipped
	failed string // the first test that failed
	output string
}

// testTimeout is how long a test command may take. A fault can make a test wait for ever: that counts as noticed.
const testTimeout = 5 * time.Minute

// test builds and runs a test command in a tree.
func (b *builder) test(ctx context.Context, t *tree, c testCommand) (outcome, error) {
	switch c.kind {
	case "cargo", "loom":
		return b.cargo(ctx, t, c)
	case "conformance":
		return b.conformance(ctx, t, c)
	}
	return b.goTest(ctx, t, c)
}

// goTest builds the tests of a package, and runs those that a command names.
func (b *builder) goTest(ctx context.Context, t *tree, c testCommand) (outcome, error) {
	program, err := b.testProgram(ctx, t, c.target)
	if err != nil {
		return outcome{}, err
	}
	env := os.Environ()
	if needsProgram(c.target) {
		path, err := b.beeline(ctx, t)
		if err != nil {
			return outcome{}, err
		}
		env = append(env, "BEELINE_PROGRAM="+path)
	}
	args := []string{program, "-test.v", "-test.short", "-test.failfast", "-test.run=" + c.filter, fmt.Sprintf("-test.timeout=%v", testTimeout)}
	output, err := b.command(ctx, filepath.Join(b.root, c.target), env, args...)
	return goOutcome(output, err), ctx.Err()
}

// needsProgram reports whether the tests of a package run bin/beeline: the folders in test/ that have agents.
func needsProgram(target string) bool {
	inTest, ok := strings.CutPrefix(target, "./test/")
	return ok && !slices.Contains([]string{"packet", "shared", "suite", "mutants"}, inTest)
}

// testProgram returns the program with the tests of a package, and builds it first if it has to be.
func (b *builder) testProgram(ctx context.Context, t *tree, target string) (string, error) {
	t.building.Lock()
	defer t.building.Unlock()
	if path := t.tests[target]; path != "" {
		return path, nil
	}
	name := strings.ReplaceAll(strings.TrimPrefix(target, "./"), "/", "-") + ".test"
	plain := func() (string, error) { return b.testProgram(ctx, b.plain, target) }
	path, err := b.build(ctx, t, name, plain, "test", "-c", "-vet=off", target)
	if err == nil {
		t.tests[target] = path
	}
	return path, err
}

// beeline returns the program of a tree, and builds it first if it has to be.
func (b *builder) beeline(ctx context.Context, t *tree) (path string, err error) {
	t.building.Lock()
	defer t.building.Unlock()
	if t.program == "" {
		plain := func() (string, error) { return b.beeline(ctx, b.plain) }
		t.program, err = b.build(ctx, t, "beeline", plain, "build", "./cmd/beeline")
	}
	return t.program, err
}

// build builds a program of a tree. plain returns the one of the unchanged sources.
func (b *builder) build(ctx context.Context, t *tree, name string, plain func() (string, error), verb string, args ...string) (string, error) {
	path := filepath.Join(t.folder, name)
	if len(t.bpf) > 0 && !t.other {
		from, err := plain()
		if err != nil {
			return "", err
		}
		if done, err := b.patch(ctx, t, from, path); done || err != nil {
			return path, err
		}
	}
	if err := b.compilePrograms(ctx, t); err != nil {
		return "", err
	}
	t.planted = true
	return path, b.goBuild(ctx, t, verb, append([]string{"-o", path}, args...)...)
}

// goBuild runs go with the overlay of a tree.
func (b *builder) goBuild(ctx context.Context, t *tree, verb string, args ...string) error {
	overlay, err := json.Marshal(map[string]any{"Replace": t.overlay})
	if err != nil {
		return err
	}
	path := filepath.Join(t.folder, "overlay.json")
	if err := os.WriteFile(path, overlay, 0o644); err != nil {
		return err
	}
	output, err := b.command(ctx, b.root, os.Environ(), append([]string{"go", verb, "-overlay", path}, args...)...)
	if err != nil {
		return fmt.Errorf("it does not build: go %s: %w\n%s", verb, err, output)
	}
	return nil
}

// command runs a command to its end, or ends it and what it has started when ctx is done.
func (b *builder) command(ctx context.Context, dir string, env []string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*testTimeout)
	defer cancel()
	var output bytes.Buffer
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, env, &output, &output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	err := cmd.Run()
	return output.String(), err
}
