// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// generators are the files with the lines of `make generate` that compile the programs of bpf/.
var generators = []string{"internal/bpf/generate.go", "internal/bpf/xdpdispatch/generate.go", "test/shared/shared.go", "test/shared/mesh.go"}

// bpfProgram is a line of `go generate` that compiles a program.
type bpfProgram struct {
	folder  string   // of the generated files, relative to the root
	args    []string // of go tool bpf2go, with variables
	source  string   // relative to the root
	needs   []string // the files of bpf/ that it includes, relative to the root
	command string   // for errors
}

// bpfPrograms reads the lines of all generators.
func bpfPrograms(root string) ([]bpfProgram, error) {
	var programs []bpfProgram
	for _, g := range generators {
		text, err := os.ReadFile(filepath.Join(root, g))
		if err != nil {
			return nil, err
		}
		folder := filepath.Dir(g)
		for line := range strings.Lines(string(text)) {
			command, ok := strings.CutPrefix(strings.TrimSpace(line), "//go:generate go tool bpf2go ")
			if !ok {
				continue
			}
			args := strings.Fields(command)
			source := filepath.Join(folder, args[len(args)-1])
			p := bpfProgram{folder: folder, args: args, source: source, command: command}
			if p.needs, err = includes(root, source); err != nil {
				return nil, err
			}
			programs = append(programs, p)
		}
	}
	if len(programs) == 0 {
		return nil, fmt.Errorf("no line of go generate compiles a program: see generators in test/mutants/programs.go")
	}
	return programs, nil
}

// includes returns a source and the files of the tree that it includes, relative to the root.
func includes(root, source string) ([]string, error) {
	args := append([]string{"-target", "bpf", "-MM"}, strings.Fields(os.Getenv("BPF_CFLAGS"))...)
	cmd := exec.Command(os.Getenv("BPF_CLANG"), append(args, filepath.Join(root, source))...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("what %s includes (scripts/mutants sets BPF_CLANG and BPF_CFLAGS): %w\n%s", source, err, stderr.String())
	}
	var files []string
	for _, f := range strings.Fields(strings.ReplaceAll(string(out), "\\\n", " ")) {
		if relative, ok := strings.CutPrefix(filepath.Clean(f), root+"/"); ok {
			files = append(files, relative)
		}
	}
	return files, nil
}

// changes reports whether a program includes one of the changed files of a tree.
func (p *bpfProgram) changes(t *tree) bool {
	return slices.ContainsFunc(t.bpf, func(file string) bool { return slices.Contains(p.needs, file) })
}

// compilePrograms compiles the programs that a tree changes, and puts them into its overlay.
func (b *builder) compilePrograms(ctx context.Context, t *tree) error {
	for _, p := range b.programs {
		if !p.changes(t) {
			continue
		}
		folder, err := b.compileProgram(ctx, t, p)
		if err != nil {
			return err
		}
		for _, name := range p.made() {
			t.overlay[filepath.Join(b.root, p.folder, name)] = filepath.Join(folder, name)
		}
	}
	return nil
}

// made returns the names of the files that bpf2go makes of a program: the Go source, and the object.
func (p *bpfProgram) made() []string {
	stem := strings.ToLower(p.args[len(p.args)-2]) + "_bpfel"
	return []string{stem + ".go", stem + ".o"}
}

// compileProgram compiles a program of a tree, and returns the folder of what it made. It keeps that for the next run.
func (b *builder) compileProgram(ctx context.Context, t *tree, p bpfProgram) (string, error) {
	// A fault may leave a variable unused.
	flags := strings.ReplaceAll(os.Getenv("BPF_CFLAGS"), b.root+"/bpf", filepath.Join(t.folder, "bpf")) + " -Wno-error"
	sum := sha256.New()
	fmt.Fprintln(sum, p.command, os.Getenv("BPF_CLANG"), os.Getenv("BPF_CFLAGS"))
	for _, need := range p.needs {
		path := filepath.Join(t.folder, need)
		if !strings.HasPrefix(need, "bpf/") {
			path = filepath.Join(b.root, need)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(sum, "%s %d\n%s", need, len(text), text)
	}
	kept := filepath.Join(filepath.Dir(b.folder), "objects", hex.EncodeToString(sum.Sum(nil)[:16]))
	if _, err := os.Stat(kept); err == nil {
		return kept, nil
	}
	if err := os.MkdirAll(filepath.Dir(kept), 0o755); err != nil {
		return "", err
	}
	made, err := os.MkdirTemp(b.folder, "object-")
	if err != nil {
		return "", err
	}
	args := []string{"go", "tool", "bpf2go", "-output-dir", made}
	for _, arg := range p.args[:len(p.args)-1] {
		switch arg {
		case "$BPF_CFLAGS":
			arg = flags
		default:
			arg = os.ExpandEnv(arg)
		}
		args = append(args, arg)
	}
	source := filepath.Join(t.folder, p.source)
	if !strings.HasPrefix(p.source, "bpf/") {
		source = filepath.Join(b.root, p.source)
	}
	env := append(os.Environ(), "GOPACKAGE="+filepath.Base(p.folder))
	if output, err := b.command(ctx, filepath.Join(b.root, p.folder), env, append(args, source)...); err != nil {
		return "", fmt.Errorf("%s does not compile: %w\n%s", p.source, err, output)
	}
	if err := os.Rename(made, kept); err != nil && !os.IsExist(err) {
		if _, missing := os.Stat(kept); missing != nil {
			return "", err
		}
	}
	return kept, nil
}
