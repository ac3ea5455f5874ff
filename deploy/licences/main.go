// SPDX-License-Identifier: Apache-2.0

// Command licences writes the licences of what others have written in the program and in the library of the host
// stack: of each Go package and each Rust crate that is linked, and of both standard libraries. `make generate` runs
// it, and the image contains its output.
package main

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// part is something that others have written, with the files of its licence.
type part struct {
	name  string // with its version
	files []string
}

func main() {
	var out, root string
	flag.StringVar(&out, "out", "", "file to write")
	flag.StringVar(&root, "sources", ".", "folder of Beeline's sources")
	flag.Parse()
	if err := write(out, root); err != nil {
		fmt.Fprintln(os.Stderr, "licences:", err)
		os.Exit(1)
	}
}

func write(out, root string) error {
	parts, err := goParts(root)
	if err != nil {
		return err
	}
	crates, err := rustParts(root)
	if err != nil {
		return err
	}
	text, err := document(append(parts, crates...))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	return os.WriteFile(out, text, 0o644)
}

const introduction = `Software of others in the program "beeline" and in libbeeline_hoststack.so, and its licences. Beeline itself is under the
licence in the file LICENSE. Each text stands once, below the names of all that it holds for.
`

// document has each text once, after the names of the parts that have it.
//
// Errors: a part without a licence.
func document(parts []part) ([]byte, error) {
	names := map[string][]string{} // by text
	for _, p := range parts {
		if len(p.files) == 0 {
			return nil, fmt.Errorf("%s has no licence: look for it, or do without it", p.name)
		}
		for _, file := range p.files {
			text, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			plain := strings.TrimSpace(strings.ReplaceAll(string(text), "\r\n", "\n"))
			names[plain] = append(names[plain], fmt.Sprintf("%s (%s)", p.name, filepath.Base(file)))
		}
	}
	texts := make([]string, 0, len(names))
	for text, of := range names {
		slices.Sort(of)
		names[text] = slices.Compact(of)
		texts = append(texts, text)
	}
	slices.SortFunc(texts, func(a, b string) int { return cmp.Compare(names[a][0], names[b][0]) })
	var b bytes.Buffer
	b.WriteString(introduction)
	for _, text := range texts {
		fmt.Fprintf(&b, "\n%s\n%s\n\n%s\n", strings.Repeat("=", 80), strings.Join(names[text], "\n"), text)
	}
	return b.Bytes(), nil
}

// licenceFiles are the files of a folder that grant a licence, or that one requires to pass on.
func licenceFiles(folder string) (files []string, err error) {
	entries, err := os.ReadDir(folder)
	for _, e := range entries {
		name := strings.ToUpper(e.Name())
		for _, prefix := range []string{"LICENSE", "LICENCE", "NOTICE", "COPYING", "COPYRIGHT"} {
			if strings.HasPrefix(name, prefix) && e.Type().IsRegular() && !strings.HasSuffix(name, ".GO") {
				files = append(files, filepath.Join(folder, e.Name()))
			}
		}
	}
	return files, err
}
