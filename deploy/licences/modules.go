// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// goPackage is what `go list -json` says of a package.
type goPackage struct {
	Dir      string
	Standard bool
	Module   *struct {
		Path, Version, Dir string
		Main               bool
	}
}

// goParts returns the modules of the packages that are linked into the program, and Go's standard library. The
// licences of a module are those of its folder, and of the folders between it and a linked package: it may contain
// code of others.
func goParts(root string) ([]part, error) {
	list := exec.Command("go", "list", "-C", root, "-deps", "-json=Dir,Standard,Module", "./cmd/beeline")
	list.Env = append(os.Environ(), "CGO_ENABLED=0")
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("list the packages of the program: %w", err)
	}
	goRoot, err := exec.Command("go", "env", "-C", root, "GOROOT", "GOVERSION").Output()
	if err != nil {
		return nil, err
	}
	folder, version, _ := strings.Cut(strings.TrimSpace(string(goRoot)), "\n")
	standard, err := licenceFiles(folder)
	if err != nil {
		return nil, err
	}
	parts := map[string]*part{"": {name: "The Go standard library, " + version, files: standard}}
	for packages := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := packages.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		if p.Standard || p.Module == nil || p.Module.Main {
			continue
		}
		m := parts[p.Module.Path]
		if m == nil {
			m = &part{name: p.Module.Path + " " + p.Module.Version}
			parts[p.Module.Path] = m
		}
		for folder := p.Dir; ; folder = filepath.Dir(folder) {
			files, err := licenceFiles(folder)
			if err != nil {
				return nil, err
			}
			m.files = append(m.files, files...)
			if folder == p.Module.Dir || len(folder) < len(p.Module.Dir) {
				break
			}
		}
	}
	var all []part
	for _, p := range parts {
		slices.Sort(p.files)
		p.files = slices.Compact(p.files)
		all = append(all, *p)
	}
	return all, nil
}
