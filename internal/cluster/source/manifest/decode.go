// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"bytes"
	"cmp"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
	"sigs.k8s.io/json"

	"beeline.io/beeline/internal/util/suggest"
)

const (
	tooManyAliases = "aliases (*name) and merge keys (<<) of this file repeat too many values; write them out"
	tooDeep        = "values are nested more than %d levels deep"
	unknownField   = "unknown field; remove it, or correct its name or indentation"
)

// decoder decodes a tree into an API type strictly: unknown and duplicate fields, and values of a wrong type,
// are errors. It writes the tree as JSON, which the decoder of the API server reads.
//
// That decoder stops at some errors and does not know where they are. So if it fails, the tree is written
// again, and each value is tried by itself: the decoder gets a text with only this value and the fields around
// it. What fails is reported with its line and is null in the JSON, so that the rest can be decoded and checked.
type decoder struct {
	*complaints
	into reflect.Type  // of the object
	json *bytes.Buffer // of what was read so far
	path []step        // of the current value
	// left is the number of values that aliases may still repeat. It limits files in which a few lines of
	// aliases expand to millions of values.
	left    *atomic.Int64
	aliases int  // nesting of aliases around the current value
	trying  bool // each value by itself
	// noAnnotations is that of limits.
	noAnnotations bool
}

// step is one step of a path: a field or map key, or an index if name is nil.
type step struct {
	name  *yaml.Node
	index int
}

// buffers are reused: their contents are copied when they are decoded.
var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// decode decodes n into the API object that out points to.
func (d *decoder) decode(n *yaml.Node, out any) {
	d.into = reflect.TypeOf(out).Elem()
	d.json = buffers.Get().(*bytes.Buffer)
	defer buffers.Put(d.json)
	d.json.Reset()
	d.value(n)
	strict, err := json.UnmarshalStrict(d.json.Bytes(), out)
	if len(strict) == 0 && err == nil {
		return
	}
	d.trying = true
	d.json.Reset()
	d.value(n)
	reflect.ValueOf(out).Elem().SetZero()
	if _, err := json.UnmarshalStrict(d.json.Bytes(), out); err != nil {
		d.add("", n.Line, "%v", err)
	}
}

// value writes n, or null if it is invalid.
func (d *decoder) value(n *yaml.Node) {
	n, leave, ok := d.enter(n)
	defer leave()
	switch {
	case !ok || d.trying && !d.accepted(n):
		d.json.WriteString("null")
	case n.Kind == yaml.MappingNode:
		d.mapping(n)
	case n.Kind == yaml.SequenceNode:
		for i, c := range n.Content {
			d.json.WriteByte(separator('[', i))
			d.path = append(d.path, step{index: i})
			d.value(c)
			d.path = d.path[:len(d.path)-1]
		}
		d.json.WriteString(closing("[]", len(n.Content)))
	default:
		d.json.Write(d.appendScalar(d.json.AvailableBuffer(), n))
	}
}

// enter follows an alias, and counts repeated values and nesting depth. The caller must always call leave.
func (d *decoder) enter(n *yaml.Node) (_ *yaml.Node, leave func(), ok bool) {
	leave = func() {}
	if n.Kind == yaml.AliasNode {
		d.aliases++
		leave = func() { d.aliases-- }
	}
	value := target(n)
	// Long texts count as several values, because each repetition takes memory.
	if d.aliases > 0 && d.left.Add(-1-int64(len(value.Value)/64)) < 0 {
		d.add("", n.Line, tooManyAliases) // once per object, not per value
		return n, leave, false
	}
	if len(d.path) > maxDepth {
		d.add("", n.Line, tooDeep, maxDepth)
		return n, leave, false
	}
	return value, leave, true
}

// mapping writes the fields of a mapping. The first time, the API's decoder finds those that are given twice.
func (d *decoder) mapping(n *yaml.Node) {
	fields := 0
	var first map[string]int // lines
	if d.trying {
		first = make(map[string]int)
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name := target(n.Content[i])
		if name.Kind != yaml.ScalarNode || isNull(name) {
			d.fail(name, "want a name before the colon, have %s", describeNode(name))
			continue
		}
		d.path = append(d.path, step{name: name})
		if line, ok := first[name.Value]; ok {
			d.fail(name, "given twice, first on line %d; remove one of the two", line)
		} else {
			d.json.WriteByte(separator('{', fields))
			d.json.Write(appendQuoted(d.json.AvailableBuffer(), name.Value))
			d.json.WriteByte(':')
			d.value(n.Content[i+1])
			fields++
		}
		if d.trying {
			first[name.Value] = cmp.Or(first[name.Value], name.Line)
		}
		d.path = d.path[:len(d.path)-1]
	}
	d.json.WriteString(closing("{}", fields))
}

// separator precedes the element with this index.
func separator(open byte, index int) byte {
	if index == 0 {
		return open
	}
	return ','
}

// closing follows this number of elements.
func closing(brackets string, elements int) string {
	if elements == 0 {
		return brackets
	}
	return brackets[1:]
}

// appendScalar appends a scalar in JSON.
func (d *decoder) appendScalar(to []byte, n *yaml.Node) []byte {
	if b, ok := isBool(n); ok {
		return strconv.AppendBool(to, b)
	}
	switch n.Tag {
	case "!!str", "!!timestamp":
		return appendQuoted(to, n.Value)
	case "!!int", "!!float":
		if text, ok := appendNumber(to, n); ok {
			return text
		}
	case "!!null":
		return append(to, "null"...)
	}
	d.fail(n, "%s is not read", describeNode(n))
	return append(to, "null"...)
}

// appendNumber appends a number in JSON. YAML has more ways to write one than JSON: 0x1F90, 0o17, +1, 1_000.
func appendNumber(to []byte, n *yaml.Node) (text []byte, ok bool) {
	if v, err := strconv.ParseInt(n.Value, 10, 64); err == nil {
		if text := strconv.AppendInt(to, v, 10); string(text[len(to):]) == n.Value {
			return text, true
		}
	}
	var number any
	if n.Decode(&number) != nil {
		return to, false
	}
	more, err := stdjson.Marshal(number)
	return append(to, more...), err == nil
}

// appendQuoted appends a string in JSON.
func appendQuoted(to []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			text, _ := stdjson.Marshal(s) // of a string it cannot fail
			return append(to, text...)
		}
	}
	to = append(to, '"')
	to = append(to, s...)
	return append(to, '"')
}

// accepted reports whether the API has a field of this name and type at the current path. If not, the error is
// reported.
func (d *decoder) accepted(n *yaml.Node) bool {
	var value []byte
	switch n.Kind {
	case yaml.MappingNode:
		value = []byte("{}")
	case yaml.SequenceNode:
		value = []byte("[]")
	default:
		value = d.appendScalar(nil, n)
	}
	strict, err := d.try(d.path, value)
	switch {
	case err != nil:
		d.fail(n, "%s", describeWrong(n, err))
	case len(strict) > 0:
		d.unknown(d.path[len(d.path)-1].name)
	}
	return len(strict) == 0 && err == nil
}

// try decodes a JSON text with only this value and the fields and lists around it.
func (d *decoder) try(path []step, value []byte) (strict []error, err error) {
	text := value
	for i := len(path) - 1; i >= 0; i-- {
		if name := path[i].name; name != nil {
			text = fmt.Appendf(nil, "{%s:%s}", appendQuoted(nil, name.Value), text)
		} else {
			text = fmt.Appendf(nil, "[%s]", text)
		}
	}
	return json.UnmarshalStrict(text, reflect.New(d.into).Interface())
}

// unknown reports an unknown field at the current path, and the field that is probably meant.
func (d *decoder) unknown(name *yaml.Node) {
	parent := d.path[:len(d.path)-1]
	// The error of a number in place of the structure has the structure's type.
	_, err := d.try(parent, []byte("0"))
	var wrong *stdjson.UnmarshalTypeError
	meant := ""
	if errors.As(err, &wrong) && wrong.Type.Kind() == reflect.Struct {
		meant = suggest.Nearest(name.Value, fieldsOf(wrong.Type))
	}
	if meant == "" {
		d.fail(name, unknownField)
		return
	}
	d.fail(name, "unknown field; is %q meant?", meant)
	d.expect(join(pathString(parent), meant)) // so that its absence is not reported
}

// fieldsOf returns the JSON names of an API type's fields.
func fieldsOf(t reflect.Type) (names []string) {
	for _, f := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
			names = append(names, name)
		}
	}
	return names
}

// describeWrong describes why a value cannot be decoded.
func describeWrong(n *yaml.Node, err error) string {
	var wrong *stdjson.UnmarshalTypeError
	if !errors.As(err, &wrong) {
		return fmt.Sprintf("%s: %v", describeNode(n), err)
	}
	want, then := "a mapping", ""
	switch wrong.Type.Kind() {
	case reflect.Slice:
		want = "a list"
	case reflect.Bool:
		want = "true or false"
	case reflect.String:
		want = "a string"
		if n.Kind == yaml.ScalarNode && n.Style&yaml.TaggedStyle == 0 {
			then = "; write it in quotes"
		}
	case reflect.Int32, reflect.Int64:
		if n.Tag == "!!int" {
			limit := math.MaxInt64 >> (64 - wrong.Type.Bits())
			want = fmt.Sprintf("a number from %d to %d", -limit-1, limit)
			break
		}
		want = "a whole number"
		if n.Kind == yaml.ScalarNode && n.Tag == "!!str" && n.Style != 0 {
			want += " without quotes"
		}
	}
	return fmt.Sprintf("want %s, have %s%s", want, describeNode(n), then)
}

// fail reports an error in the value at the current path.
func (d *decoder) fail(n *yaml.Node, format string, args ...any) {
	d.add(pathString(d.path), n.Line, format, args...)
}

func pathString(steps []step) (path string) {
	for _, s := range steps {
		if s.name != nil {
			path = join(path, s.name.Value)
		} else {
			path += fmt.Sprintf("[%d]", s.index)
		}
	}
	return path
}
