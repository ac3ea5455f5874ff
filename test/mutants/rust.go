// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"
)

// cargo builds the tests of a crate, and runs those that a command names.
func (b *builder) cargo(ctx context.Context, t *tree, c testCommand) (outcome, error) {
	unlock, err := b.lockRust()
	if err != nil {
		return outcome{}, err
	}
	defer unlock()
	if err := b.syncRust(t); err != nil {
		return outcome{}, err
	}
	args, env := []string{"cargo", "test", "--locked", "--target-dir", b.rustTarget(), "-p", c.target}, os.Environ()
	if c.kind == "loom" { // as scripts/hoststack, but without the linker's optimization, which takes a minute
		args = []string{"cargo", "test", "--locked", "--release", "--target-dir", b.rustTarget() + "/loom", "-p", c.target, "--test", "interleavings"}
		env = append(env, "RUSTFLAGS=--cfg loom", "CARGO_PROFILE_RELEASE_LTO=false", "CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16")
	}
	if output, err := b.command(ctx, b.rustFolder(), env, append(args, "--no-run")...); err != nil {
		return outcome{}, fmt.Errorf("it does not build: cargo test: %w\n%s", err, output)
	}
	output, err := b.command(ctx, b.rustFolder(), env, append(args, strings.Fields(c.filter)...)...)
	return cargoOutcome(output, err), ctx.Err()
}

var (
	caseFailed  = regexp.MustCompile(`(?m)^FAIL (\S+)$`)
	casesPassed = regexp.MustCompile(`(?m)^socket API: [1-9]`)
)

// conformance builds the library, and runs cases of the conformance suite in a network namespace of their own.
func (b *builder) conformance(ctx context.Context, t *tree, c testCommand) (outcome, error) {
	unlock, err := b.lockRust()
	if err != nil {
		return outcome{}, err
	}
	defer unlock()
	if err := b.syncRust(t); err != nil {
		return outcome{}, err
	}
	output, err := b.command(ctx, b.rustFolder(), os.Environ(), "cargo", "build", "--locked", "--target-dir", b.rustTarget(), "--workspace")
	if err != nil {
		return outcome{}, fmt.Errorf("it does not build: cargo build: %w\n%s", err, output)
	}
	made := filepath.Join(b.rustTarget(), "debug")
	args := []string{"unshare", "--net", "sh", "-c", `ip link set lo up && exec "$@"`, "-",
		filepath.Join(made, "beeline-conformance"), "--library", filepath.Join(made, "libbeeline_hoststack.so")}
	output, err = b.command(ctx, b.rustFolder(), os.Environ(), append(args, strings.Fields(c.target)...)...)
	o := outcome{ran: casesPassed.MatchString(output), output: output}
	if f := caseFailed.FindStringSubmatch(output); f != nil {
		o.failed = "conformance " + f[1]
	} else if err != nil {
		o.failed = "conformance: " + err.Error()
	}
	return o, ctx.Err()
}

// lockRust waits until no other worker, also of another run, uses the copy of hoststack/.
func (b *builder) lockRust() (unlock func(), err error) {
	b.rust.Lock()
	file, err := os.OpenFile(b.rustFolder()+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err == nil {
		err = unix.Flock(int(file.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		b.rust.Unlock()
		return nil, err
	}
	return func() { file.Close(); b.rust.Unlock() }, nil
}

// All trees use one copy of hoststack/, one after the other, so that cargo compiles only what has changed.
func (b *builder) rustFolder() string { return filepath.Join(filepath.Dir(b.folder), "hoststack") }
func (b *builder) rustTarget() string { return filepath.Join(filepath.Dir(b.folder), "cargo") }

// syncRust makes the copy of hoststack/ that of a tree. It writes only files that differ: cargo compares times.
func (b *builder) syncRust(t *tree) error {
	from := filepath.Join(b.root, "hoststack")
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(b.rustFolder(), relative)
		if d.IsDir() {
			if relative == "target" {
				return filepath.SkipDir
			}
			return os.MkdirAll(target, 0o755)
		}
		if t.overlay[path] != "" {
			path = t.overlay[path]
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if there, err := os.ReadFile(target); err == nil && bytes.Equal(there, text) {
			return nil
		}
		return os.WriteFile(target, text, 0o644)
	})
}
