// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// Go compiles and links half of the product again when a BPF object changes, because its program embeds it. So what is
// built of the unchanged sources embeds objects with room behind them, and a changed object is written over the
// original. Readers of ELF ignore what follows the sections.
const objectRoom = 32 << 10

// padObjects has programs of the unchanged sources embed objects with room.
func (b *builder) padObjects() error {
	for _, p := range b.programs {
		object := filepath.Join(b.root, p.folder, p.made()[1])
		data, err := padded(object)
		if err != nil {
			return fmt.Errorf("%w (after `make programs`?)", err)
		}
		path := filepath.Join(b.plain.folder, p.made()[1])
		if err := os.WriteFile(path, data, 0o644); err != nil {
			return err
		}
		b.plain.overlay[object] = path
	}
	return nil
}

func padded(object string) ([]byte, error) {
	data, err := os.ReadFile(object)
	return append(data, make([]byte, objectRoom)...), err
}

// patch copies a program of the unchanged sources, with the objects that a tree changes. It compiles only those that
// the program has. It returns false if the changed objects do not fit, or need other Go sources: then the program has
// to be built.
func (b *builder) patch(ctx context.Context, t *tree, from, to string) (done bool, err error) {
	program, err := os.ReadFile(from)
	if err != nil {
		return false, err
	}
	for _, p := range b.programs {
		if !p.changes(t) {
			continue
		}
		original, err := padded(filepath.Join(b.root, p.folder, p.made()[1]))
		if err != nil {
			return false, err
		}
		at := bytes.Index(program, original)
		if at < 0 {
			continue
		}
		folder, err := b.compileProgram(ctx, t, p)
		if err != nil {
			return false, err
		}
		same, err := sameFile(filepath.Join(b.root, p.folder, p.made()[0]), filepath.Join(folder, p.made()[0]))
		if err != nil {
			return false, err
		}
		object, err := os.ReadFile(filepath.Join(folder, p.made()[1]))
		if err != nil || !same || len(object) > len(original) {
			return false, err
		}
		clear(program[at : at+len(original)])
		copy(program[at:], object)
		t.planted = true
	}
	return true, os.WriteFile(to, program, 0o755)
}

func sameFile(a, b string) (bool, error) {
	one, err := os.ReadFile(a)
	if err != nil {
		return false, err
	}
	other, err := os.ReadFile(b)
	return bytes.Equal(one, other), err
}
