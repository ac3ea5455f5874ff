// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"
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
func parseJSON(data []byte) ([]*yaml.Node, *syntaxError) {
	r := &jsonReader{dec: json.NewDecoder(bytes.NewReader(data)), data: data, line: 1}
	r.dec.UseNumber()
	var trees []*yaml.Node
	for {
		tok, err := r.token()
		if errors.Is(err, io.EOF) {
			return trees, nil
		}
		var n *yaml.Node
		if err == nil {
			n, err = r.node(tok, 0)
		}
		if err != nil {
			return nil, r.syntaxError(err)
		}
		trees = append(trees, n)
	}
}

func (r *jsonReader) token() (json.Token, error) {
	tok, err := r.dec.Token()
	if err == nil {
		// Tokens contain no line ends, so a token's last byte is on its line.
		r.countLines()
	}
	return tok, err
}

// countLines advances line to the decoder's position.
func (r *jsonReader) countLines() {
	to := r.dec.InputOffset()
	r.line += bytes.Count(r.data[r.at:to], []byte("\n"))
	r.at = to
}

func (r *jsonReader) node(tok json.Token, depth int) (*yaml.Node, error) {
	n := &yaml.Node{Kind: yaml.ScalarNode, Line: r.line}
	switch t := tok.(type) {
	case json.Delim:
		return n, r.collection(n, t, depth+1)
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

// collection reads an object or a list up to its closing bracket.
func (r *jsonReader) collection(n *yaml.Node, open json.Delim, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf(tooDeep, maxDepth)
	}
	n.Kind, n.Tag = yaml.SequenceNode, "!!seq"
	if open == '{' {
		n.Kind, n.Tag = yaml.MappingNode, "!!map"
	}
	for {
		// Names and values alternate in an object; the decoder ensures that names are strings.
		tok, err := r.token()
		if errors.Is(err, io.EOF) {
			return io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
		if d, ok := tok.(json.Delim); ok && (d == ']' || d == '}') {
			return nil
		}
		c, err := r.node(tok, depth)
		if err != nil {
			return err
		}
		n.Content = append(n.Content, c)
	}
}

func (r *jsonReader) syntaxError(err error) *syntaxError {
	var se *json.SyntaxError
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return &syntaxError{r.line, "not JSON: it ends in the middle of a value"}
	case errors.As(err, &se):
		// The line where the invalid token starts: the meaning of SyntaxError.Offset depends on the
		// kind of token.
		r.countLines()
		return &syntaxError{r.line, "not JSON: " + err.Error()}
	}
	return &syntaxError{r.line, err.Error()}
}
