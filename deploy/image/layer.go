// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/elf"
	"errors"
	"fmt"
)

// Paths in the image.
const (
	binFolder   = "usr/local/bin/"
	programPath = binFolder + "beeline"
	libFolder   = "usr/local/lib/"
	libraryPath = libFolder + "libbeeline_hoststack.so"
	docFolder   = "usr/share/doc/beeline/"
	licencePath = docFolder + "LICENSE"
	thirdPath   = docFolder + "THIRD-PARTY"
)

// machines are the ELF machines of the architectures.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// parseELF returns an error if a file is for another architecture.
func parseELF(file []byte, arch string) (*elf.File, error) {
	f, err := elf.NewFile(bytes.NewReader(file))
	if err != nil {
		return nil, err
	}
	if f.Machine != machines[arch] {
		return nil, fmt.Errorf("it is for %v, not for %s", f.Machine, arch)
	}
	return f, nil
}

// checkLibrary returns an error if programs cannot preload the library.
func checkLibrary(library []byte, arch string) error {
	f, err := parseELF(library, arch)
	if err != nil {
		return err
	}
	if f.Type != elf.ET_DYN {
		return errors.New("it is no shared library")
	}
	return nil
}

// checkStatic returns an error if the program cannot run in an image without the C library.
func checkStatic(program []byte, arch string) error {
	f, err := parseELF(program, arch)
	if err != nil {
		return err
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			return errors.New("it is dynamically linked, and the image has no C library: build it with CGO_ENABLED=0")
		}
	}
	return nil
}

// layer returns the compressed layer, and the digest of its tar. Times, owners and order are fixed.
func (b *build) layer() (compressed []byte, diffID string, err error) {
	var plain bytes.Buffer
	t := tar.NewWriter(&plain)
	for _, name := range []string{"usr/", "usr/local/", binFolder} {
		err = errors.Join(err, t.WriteHeader(b.header(name, tar.TypeDir, 0o755, nil)))
	}
	err = errors.Join(err, b.file(t, programPath, 0o755, b.Program), t.WriteHeader(b.header(libFolder, tar.TypeDir, 0o755, nil)),
		b.file(t, libraryPath, 0o755, b.Library))
	for _, name := range []string{"usr/share/", "usr/share/doc/", docFolder} {
		err = errors.Join(err, t.WriteHeader(b.header(name, tar.TypeDir, 0o755, nil)))
	}
	err = errors.Join(err, b.file(t, licencePath, 0o644, b.Licence), b.file(t, thirdPath, 0o644, b.ThirdParty), t.Close())
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, writeErr := z.Write(plain.Bytes())
	err = errors.Join(err, writeErr, z.Close())
	return packed.Bytes(), digestOf(plain.Bytes()), err
}

func (b *build) file(t *tar.Writer, name string, mode int64, text []byte) error {
	if err := t.WriteHeader(b.header(name, tar.TypeReg, mode, text)); err != nil {
		return err
	}
	_, err := t.Write(text)
	return err
}

func (b *build) header(name string, kind byte, mode int64, text []byte) *tar.Header {
	return &tar.Header{Typeflag: kind, Name: name, Mode: mode, Size: int64(len(text)), ModTime: b.Created, Format: tar.FormatPAX}
}

func digestOf(blob []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(blob)) }
