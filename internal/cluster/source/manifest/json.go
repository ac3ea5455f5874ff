// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v4"
)

// maxDepth is the maximum nesting depth. The deepest Kubernetes object has about 20 levels.
const maxDepth = 100

// jsonReader converts JSON to the trees that the YAML parser returns. YAML includes most of JSON, but neither
// surrogate pairs nor two values without a "---" between them.
type jsonReader struct {
	dec  *json.Decoder
	data []byte
	line int   // line of at, from 1
	at   int64 // offset up to which lines are counted
}

// parseJSON returns one tree for each value in the file.
func parseJSON(data []byte) (trees []*yaml.Node, _ *syntaxError) {
	r := &jsonReader{dec: json.NewDecoder(bytes.NewReader(data)), data: data, line: 1}
	r.dec.UseNumber()
	for {
		n, err := r.node(0)
		if errors.Is(err, io.EOF) {
			return trees, nil
		}
		if err != nil {
			return nil, r.syntaxError(err)
		}
		trees = append(trees, n)
	}
}

// countLines advances line to the decoder's position.
func (r *jsonReader) countLines() {
	to := r.dec.InputOffset()
	r.line += bytes.Count(r.data[r.at:to], []byte("\n"))
	r.at = to
}

// node reads a value; it returns nil at the closing bracket of the object or list around it.
func (r *jsonReader) node(depth int) (*yaml.Node, error) {
	tok, err := r.dec.Token()
	if errors.Is(err, io.EOF) && depth > 0 {
		return nil, io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, err
	}
	// Tokens contain no line ends, so a token's last byte is on its line.
	r.countLines()
	n := &yaml.Node{Kind: yaml.ScalarNode, Line: r.line}
	switch t := tok.(type) {
	case json.Delim:
		return r.collection(n, t, depth+1)
	case string:
		n.Tag, n.Value, n.Style = "!!str", t, yaml.DoubleQuotedStyle
	case json.Number:
		n.Tag, n.Value = "!!int", t.String()
		if strings.ContainsAny(n.Value, ".eE") {
			n.Tag = "!!float"
		}
	case bool:
		n.Tag, n.Value = "!!bool", fmt.Sprint(t)
	case nil:
		n.Tag, n.Value = "!!null", "null"
	}
	return n, nil
}

// collection reads an object or a list into n. Names and values alternate in an object; the decoder ensures
// that names are strings.
func (r *jsonReader) collection(n *yaml.Node, bracket json.Delim, depth int) (*yaml.Node, error) {
	switch bracket {
	case '{':
		n.Kind, n.Tag = yaml.MappingNode, "!!map"
	case '[':
		n.Kind, n.Tag = yaml.SequenceNode, "!!seq"
	default:
		return nil, nil
	}
	if depth > maxDepth {
		return nil, fmt.Errorf(tooDeep, maxDepth)
	}
	for {
		c, err := r.node(depth)
		if c == nil || err != nil {
			return n, err
		}
		n.Content = append(n.Content, c)
	}
}

// syntaxError adds the line where the invalid token starts: the meaning of SyntaxError.Offset depends on the
// kind of token.
func (r *jsonReader) syntaxError(err error) *syntaxError {
	var se *json.SyntaxError
	reason := err.Error()
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		reason = "not JSON: it ends in the middle of a value"
	case errors.As(err, &se):
		r.countLines()
		reason = "not JSON: " + reason
	}
	return &syntaxError{r.line, reason}
}
