// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"slices"
	"strings"
	"sync/atomic"

	"go.yaml.in/yaml/v4"
)

// target returns the node that an alias refers to, or the node itself.
func target(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		return n.Alias
	}
	return n
}

// prepare adds addLines to the lines of a parsed document, and expands merge keys ("<<: *anchor").
func prepare(n *yaml.Node, addLines int, left *atomic.Int64) *syntaxError {
	n.Line += addLines
	// Children first: a merge key refers to an earlier mapping, which is then already expanded.
	for _, c := range n.Content {
		if err := prepare(c, addLines, left); err != nil {
			return err
		}
	}
	if n.Kind == yaml.MappingNode && slices.ContainsFunc(n.Content, isMerge) {
		return expandMerges(n, left)
	}
	return nil
}

// expandMerges adds the fields of the mappings in a mapping's merge keys; its own fields take precedence, then
// earlier mappings. The parser's own merging compares each name with each other one, which takes minutes for
// some small files.
func expandMerges(n *yaml.Node, left *atomic.Int64) *syntaxError {
	var content, mappings []*yaml.Node
	have := make(map[string]bool)
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := n.Content[i], n.Content[i+1]
		switch {
		case !isMerge(name):
			content = append(content, name, value)
			have[name.Value] = true
		case target(value).Kind == yaml.SequenceNode:
			mappings = append(mappings, target(value).Content...)
		default:
			mappings = append(mappings, value)
		}
	}
	for _, m := range mappings {
		mapping := target(m)
		if mapping.Kind != yaml.MappingNode {
			return &syntaxError{m.Line, "<<: want a mapping or a list of mappings, have " + describeNode(mapping)}
		}
		if left.Add(-int64(len(mapping.Content))) < 0 {
			return &syntaxError{m.Line, tooManyAliases}
		}
		for i := 0; i+1 < len(mapping.Content); i += 2 {
			name, value := mapping.Content[i], mapping.Content[i+1]
			if have[name.Value] || isMerge(name) {
				continue
			}
			have[name.Value] = true
			// Add it as an alias, so that it counts as one, and so that a mapping that merges a
			// surrounding one does not make an endless tree.
			content = append(content, name, &yaml.Node{Kind: yaml.AliasNode, Alias: target(value), Line: value.Line})
		}
	}
	n.Content = content
	return nil
}

func isMerge(name *yaml.Node) bool {
	return name.Kind == yaml.ScalarNode && name.Tag == "!!merge"
}

// child returns a field's value, or nil.
func child(n *yaml.Node, name string) *yaml.Node {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			return target(n.Content[i+1])
		}
	}
	return nil
}

// text returns a field's text, or "" if it has none.
func text(n *yaml.Node, name string) string {
	if v := child(n, name); v != nil && v.Kind == yaml.ScalarNode && !isNull(v) {
		return v.Value
	}
	return ""
}

// isNull reports whether a value is null: null, ~, or missing.
func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

// isBool parses booleans. Like in kubectl, which reads YAML 1.1, unquoted yes, no, on and off are booleans too,
// so that a file means the same here.
func isBool(n *yaml.Node) (value, ok bool) {
	if n.Kind != yaml.ScalarNode || len(n.Value) > len("false") {
		return false, false
	}
	if n.Tag != "!!bool" && (n.Tag != "!!str" || n.Style != 0) {
		return false, false
	}
	switch n.Value {
	case "y", "Y", "n", "N":
		return n.Value == "y" || n.Value == "Y", true
	}
	switch v := n.Value; v {
	case strings.ToLower(v), strings.ToUpper(v), strings.ToUpper(v[:1]) + strings.ToLower(v[1:]):
		switch strings.ToLower(v) {
		case "true", "yes", "on":
			return true, true
		case "false", "no", "off":
			return false, true
		}
	}
	return false, false
}

// describeNode describes a value for an error message.
func describeNode(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	shown := n.Value
	if r := []rune(shown); len(r) > 60 {
		shown = string(r[:60]) + "..."
	}
	if _, ok := isBool(n); ok {
		return "the boolean " + shown
	}
	switch n.Tag {
	case "!!int", "!!float":
		return "the number " + shown
	case "!!null":
		return "nothing"
	case "!!str", "!!timestamp":
		return "the string " + quote(shown)
	}
	return "a value with the tag " + n.Tag
}

func quote(s string) string { return `"` + strings.ReplaceAll(s, `"`, `\"`) + `"` }
