// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// complaint is a problem with one field of an object. Its path has the form of the Kubernetes API, with map
// keys in brackets: spec.ports[0].port, metadata.annotations[beeline.io/weight].
type complaint struct {
	path    string // empty: the whole object
	reason  string
	warning bool
	line    int // 0: derive it from the path
}

// complaints collects the problems of one object.
type complaints struct {
	list  []complaint
	wrong map[string]bool // paths with an error
	// written maps the path that a converter reports to the path in the file, if a default copied the
	// value.
	written map[string]string
}

// add adds an error unless it follows from another one.
func (c *complaints) add(path string, line int, format string, args ...any) {
	if !c.known(path) {
		c.expect(path)
		c.list = append(c.list, complaint{path: path, line: line, reason: fmt.Sprintf(format, args...)})
	}
}

// expect suppresses errors that follow from an error in that field.
func (c *complaints) expect(path string) {
	if c.wrong == nil {
		c.wrong = make(map[string]bool)
	}
	c.wrong[path] = true
}

// known reports whether the same field or a surrounding one has an error.
func (c *complaints) known(path string) bool {
	for p := path; p != ""; p = parentPath(p) {
		if c.wrong[p] {
			return true
		}
	}
	return path == "" && c.wrong[path]
}

// errorf adds an error at the line of its path.
func (c *complaints) errorf(path, format string, args ...any) { c.add(path, 0, format, args...) }

// warnf adds a warning about something allowed that is probably a mistake.
func (c *complaints) warnf(path, format string, args ...any) {
	if !c.known(path) {
		c.list = append(c.list, complaint{path: path, reason: fmt.Sprintf(format, args...), warning: true})
	}
}

// addConverted adds the errors of a converter, which are joined and have the form "path: reason".
func (c *complaints) addConverted(err error) {
	if err == nil {
		return
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			c.addConverted(e)
		}
		return
	}
	path, reason, ok := strings.Cut(err.Error(), ": ")
	if !ok || strings.ContainsAny(path, " ") {
		path, reason = "", err.Error()
	}
	if at, ok := c.written[path]; ok {
		path = at
	}
	c.errorf(path, "%s", reason)
}

// ok reports that there is no error.
func (c *complaints) ok() bool { return len(c.wrong) == 0 }

// parentPath removes the last step of a path: a.b[c] becomes a.b, and a.b becomes a.
func parentPath(path string) string {
	if strings.HasSuffix(path, "]") {
		return path[:max(0, strings.LastIndexByte(path, '['))]
	}
	return path[:max(0, strings.LastIndexByte(path, '.'))]
}

// lineOf returns the line of a path in an object, or of the longest part of the path that exists.
func lineOf(n *yaml.Node, path string) int {
	line := n.Line
	for path != "" {
		var step string
		if strings.HasPrefix(path, "[") {
			step, path, _ = strings.Cut(path[1:], "]")
		} else {
			end := strings.IndexAny(path, ".[")
			if end < 0 {
				end = len(path)
			}
			step, path = path[:end], path[end:]
		}
		path = strings.TrimPrefix(path, ".")
		next, at := descend(n, step)
		if next == nil {
			return line
		}
		n, line = next, at
	}
	return line
}

// descend takes one step of a path. The line of a field is that of its name, not of its value.
func descend(n *yaml.Node, step string) (*yaml.Node, int) {
	n = target(n)
	if n.Kind == yaml.SequenceNode {
		i, err := strconv.Atoi(step)
		if err != nil || i < 0 || i >= len(n.Content) {
			return nil, 0
		}
		return n.Content[i], n.Content[i].Line
	}
	if n.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == step {
				return n.Content[i+1], n.Content[i].Line
			}
		}
	}
	return nil, 0
}
