// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"strings"

	"go.yaml.in/yaml/v4"
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

// join appends a field or map key to a path.
func join(path, name string) string {
	switch {
	case !isWord(name):
		return path + "[" + name + "]"
	case path == "":
		return name
	}
	return path + "." + name
}

// isWord distinguishes a name from a map key with other characters, such as beeline.io/weight.
func isWord(name string) bool {
	return name != "" && !strings.ContainsAny(name, ".[]/")
}

// lineOf returns the line of a path in an object, or of the longest part of the path that exists. The line of
// a field is that of its name, not of its value.
func lineOf(n *yaml.Node, path string) int {
	line, at := n.Line, ""
	for deeper := true; deeper; {
		deeper = false
		for i, c := range n.Content {
			name, value := c, c
			next := fmt.Sprintf("%s[%d]", at, i)
			if n.Kind == yaml.MappingNode {
				if i%2 == 1 {
					continue
				}
				name, value = target(c), n.Content[i+1]
				next = join(at, name.Value)
			}
			if path == next || strings.HasPrefix(path, next) && strings.ContainsRune(".[", rune(path[len(next)])) {
				n, line, at, deeper = target(value), name.Line, next, true
				break
			}
		}
	}
	return line
}
