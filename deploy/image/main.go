// SPDX-License-Identifier: Apache-2.0

// Command image writes the container image of beeline: one layer with the statically linked program, the
// host stack's library for pods and the licences; no shell and no C library. The same files, version and date give
// the same bytes on every machine.
//
// The file is an OCI image layout in a tar (image-spec 1.1) and, with its manifest.json, also a docker archive
// of the same blobs: skopeo, crane, ctr, podman and docker all read it.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"time"
)

// build is what an image is made of.
type build struct {
	Program, Library, Licence, ThirdParty []byte
	Arch                                  string // GOARCH
	Version                               string
	Reference                             string // NAME:TAG
	Created                               time.Time
}

func main() {
	var b build
	var out, program, library, licence, thirdParty string
	var created int64
	flag.StringVar(&out, "out", "", "file to write")
	flag.StringVar(&program, "program", "", "statically linked program")
	flag.StringVar(&library, "library", "", "preload library of the host stack")
	flag.StringVar(&licence, "licence", "", "their licence")
	flag.StringVar(&thirdParty, "third-party", "", "licences of what others have written in them, by deploy/licences")
	flag.StringVar(&b.Arch, "arch", runtime.GOARCH, "architecture that program and library are for, as GOARCH")
	flag.StringVar(&b.Version, "version", "", "version for the labels")
	flag.StringVar(&b.Reference, "reference", "", "NAME:TAG that the image gets when it is loaded")
	flag.Int64Var(&created, "created", 0, "date for the image, in seconds since 1970")
	flag.Parse()
	b.Created = time.Unix(created, 0).UTC()
	if err := b.writeFile(out, program, library, licence, thirdParty); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func (b *build) writeFile(out, program, library, licence, thirdParty string) (err error) {
	if b.Program, err = os.ReadFile(program); err != nil {
		return err
	}
	if err := checkStatic(b.Program, b.Arch); err != nil {
		return fmt.Errorf("%s: %w", program, err)
	}
	if b.Library, err = os.ReadFile(library); err != nil {
		return err
	}
	if err := checkLibrary(b.Library, b.Arch); err != nil {
		return fmt.Errorf("%s: %w", library, err)
	}
	if b.Licence, err = os.ReadFile(licence); err != nil {
		return err
	}
	if b.ThirdParty, err = os.ReadFile(thirdParty); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	f, err := os.Create(out + ".tmp")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	digest, err := b.write(f)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	fmt.Printf("%s: %s, %s\n", out, b.Reference, digest)
	return os.Rename(f.Name(), out)
}

// write writes the image, and returns the digest of its manifest.
func (b *build) write(w io.Writer) (digest string, err error) {
	layer, diffID, err := b.layer()
	if err != nil {
		return "", err
	}
	return b.archive(w, layer, diffID)
}
