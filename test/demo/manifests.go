// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"go.yaml.in/yaml/v4"

	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// copyManifests copies the files of a folder.
func copyManifests(to, from string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		return fmt.Errorf("--manifests: %w", err)
	}
	return nil
}

// A change has the previous contents of a folder's files.
type change struct {
	folder string
	files  map[string][]byte
}

func (c *change) undo() error {
	for name, text := range c.files {
		if err := node.WriteFile(c.folder, name, text); err != nil {
			return err
		}
	}
	return nil
}

// removeEndpoints removes a pod from all EndpointSlices of a Service in the namespace "default", as a user with
// an editor would.
func removeEndpoints(folder, service string, pod *lab.Host) (*change, error) {
	c := &change{folder: folder, files: map[string][]byte{}}
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		name := entry.Name()
		if filepath.Ext(name) != ".yaml" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			return nil, err
		}
		edited, removed, err := withoutEndpoints(text, filepath.Base(service), pod.Addr4.String(), pod.Addr6.String())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if removed == 0 {
			continue
		}
		if err := node.WriteFile(folder, name, edited); err != nil {
			return nil, err
		}
		c.files[name] = text
	}
	if len(c.files) == 0 {
		return nil, fmt.Errorf("%s: no EndpointSlice of Service %s has an endpoint of pod %s", folder, service, pod.Name)
	}
	return c, nil
}

// withoutEndpoints removes endpoints with one of the addresses from the slices
// of a Service.
func withoutEndpoints(text []byte, service string, addresses ...string) (edited []byte, removed int, err error) {
	var out bytes.Buffer
	decoder, encoder := yaml.NewDecoder(bytes.NewReader(text)), yaml.NewEncoder(&out)
	for {
		var document yaml.Node
		if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
			return out.Bytes(), removed, encoder.Close()
		} else if err != nil {
			return nil, 0, err
		}
		owner := field(&document, "metadata", "labels", "kubernetes.io/service-name")
		if owner != nil && owner.Value == service {
			if endpoints := field(&document, "endpoints"); endpoints != nil {
				before := len(endpoints.Content)
				endpoints.Content = slices.DeleteFunc(endpoints.Content, func(e *yaml.Node) bool {
					list := field(e, "addresses")
					return list != nil && len(list.Content) > 0 && slices.Contains(addresses, list.Content[0].Value)
				})
				removed += before - len(endpoints.Content)
			}
		}
		if err := encoder.Encode(&document); err != nil {
			return nil, 0, err
		}
	}
}

// field follows keys of mappings, and returns nil if one is missing.
func field(n *yaml.Node, keys ...string) *yaml.Node {
	if n.Kind == yaml.DocumentNode && len(n.Content) == 1 {
		n = n.Content[0]
	}
	for _, key := range keys {
		at := -1
		if n.Kind == yaml.MappingNode {
			for i := 0; i+1 < len(n.Content); i += 2 {
				if n.Content[i].Value == key {
					at = i + 1
				}
			}
		}
		if at < 0 {
			return nil
		}
		n = n.Content[at]
	}
	return n
}
