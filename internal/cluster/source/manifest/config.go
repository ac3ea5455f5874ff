// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"sync/atomic"

	"go.yaml.in/yaml/v4"
)

// ParseYAML parses a file of at most one YAML document that is no manifest, such as a configuration. It returns nil for
// one without values. Aliases are bounded as in manifests.
//
// Errors: "LINE: REASON".
func ParseYAML(data []byte) (*yaml.Node, error) {
	var left atomic.Int64
	left.Store(defaultLimits.alias)
	var trees []*yaml.Node
	for _, doc := range split(data) {
		more, err := parseYAML(doc, &left)
		if err != nil {
			return nil, fmt.Errorf("%d: %s", err.line, err.reason)
		}
		trees = append(trees, more...)
	}
	switch len(trees) {
	case 0:
		return nil, nil
	case 1:
		return trees[0], nil
	}
	return nil, fmt.Errorf("%d: a second document begins here, and only one is read: remove the line \"---\" before it", trees[1].Line)
}

// Target returns the node that an alias ("*name") stands for, or else the node.
func Target(n *yaml.Node) *yaml.Node { return target(n) }

// Describe returns a node's type and value for an error, such as `the string "a"`.
func Describe(n *yaml.Node) string { return describeNode(target(n)) }
