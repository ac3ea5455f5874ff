// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// library is the crate of libbeeline_hoststack.so.
const library = "beeline-hoststack"

// metadata is what `cargo metadata` says of hoststack/.
type metadata struct {
	Packages []struct {
		ID, Name, Version string
		Source            *string // nil: a crate of hoststack/
		ManifestPath      string  `json:"manifest_path"`
	}
	Resolve struct {
		Nodes []struct {
			ID   string
			Deps []struct {
				Pkg      string
				DepKinds []struct{ Kind *string } `json:"dep_kinds"` // nil: linked
			}
		}
	}
}

// rustParts returns the crates that are linked into the library, and Rust's standard library.
func rustParts(root string) ([]part, error) {
	host, err := exec.Command("rustc", "--print=host-tuple").Output() // without the crates of cfg(loom)
	if err != nil {
		return nil, fmt.Errorf("ask rustc for its target: %w", err)
	}
	command := exec.Command("cargo", "metadata", "--format-version=1", "--locked", "--quiet", "--filter-platform", strings.TrimSpace(string(host)),
		"--manifest-path", filepath.Join(root, "hoststack", "Cargo.toml"))
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("list the crates of the library: %w", err)
	}
	var m metadata
	if err := json.Unmarshal(out, &m); err != nil {
		return nil, err
	}
	// The standard library may be used under the Apache License 2.0, the text of which is Beeline's own licence.
	all := []part{{name: "The Rust standard library, Copyright (c) The Rust Project Contributors", files: []string{filepath.Join(root, "LICENSE")}}}
	linked := m.linked()
	for _, p := range m.Packages {
		if !linked[p.ID] || p.Source == nil {
			continue
		}
		files, err := licenceFiles(filepath.Dir(p.ManifestPath))
		if err != nil {
			return nil, err
		}
		all = append(all, part{name: p.Name + " " + p.Version, files: files})
	}
	return all, nil
}

// linked returns the packages that the library needs when it runs, by ID.
func (m *metadata) linked() map[string]bool {
	found := map[string]bool{}
	var add func(id string)
	add = func(id string) {
		if found[id] {
			return
		}
		found[id] = true
		for _, n := range m.Resolve.Nodes {
			if n.ID != id {
				continue
			}
			for _, d := range n.Deps {
				for _, kind := range d.DepKinds {
					if kind.Kind == nil {
						add(d.Pkg)
					}
				}
			}
		}
	}
	for _, p := range m.Packages {
		if p.Name == library {
			add(p.ID)
		}
	}
	return found
}
