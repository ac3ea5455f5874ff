// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"sync/atomic"

	"go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	tooManyAliases = "aliases (*name) and merge keys (<<) of this file repeat too many values; write them out"
	tooDeep        = "values are nested more than %d levels deep"
	unknownField   = "unknown field; remove it, or correct its name or indentation"
)

// decoder decodes a tree into an API type strictly: unknown and duplicate fields, and values of a wrong type,
// are errors. It continues after each error and knows its line, unlike a conversion through JSON.
type decoder struct {
	*complaints
	path []step
	// left is the number of values that aliases may still repeat. It limits files in which a few lines of
	// aliases expand to millions of values.
	left    *atomic.Int64
	aliases int // nesting of aliases around the current value
}

// step is one step of a path: a field, a map key or, if name is empty, an index.
type step struct {
	name  string
	key   bool
	index int
}

func (d *decoder) pathString() string {
	var b strings.Builder
	for _, s := range d.path {
		switch {
		case s.key:
			b.WriteString("[" + s.name + "]")
		case s.name == "":
			fmt.Fprintf(&b, "[%d]", s.index)
		default:
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			b.WriteString(s.name)
		}
	}
	return b.String()
}

func (d *decoder) fail(n *yaml.Node, format string, args ...any) {
	d.add(d.pathString(), n.Line, format, args...)
}

// wrongType reports the expected and the actual type.
func (d *decoder) wrongType(n *yaml.Node, want string) {
	d.fail(n, "want %s, have %s", want, describeNode(n))
}

// decode decodes n into v. Null leaves v unchanged, like a missing field.
func (d *decoder) decode(n *yaml.Node, v reflect.Value) {
	n, leave, ok := d.enter(n)
	defer leave()
	if !ok || isNull(n) {
		return
	}
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	if u, ok := v.Addr().Interface().(json.Unmarshaler); ok {
		d.unmarshal(n, u)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		d.structure(n, v)
	case reflect.Map:
		d.mapping(n, v)
	case reflect.Slice:
		d.sequence(n, v)
	case reflect.String:
		d.text(n, v)
	case reflect.Bool:
		if b, ok := isBool(n); ok {
			v.SetBool(b)
		} else {
			d.wrongType(n, "true or false")
		}
	case reflect.Int32, reflect.Int64:
		d.integer(n, v)
	default:
		d.fail(n, "fields of type %s are not read", v.Type())
	}
}

// enter follows an alias, and counts repeated values and nesting depth. The caller must always call leave.
func (d *decoder) enter(n *yaml.Node) (_ *yaml.Node, leave func(), ok bool) {
	leave = func() {}
	if n.Kind == yaml.AliasNode {
		d.aliases++
		leave = func() { d.aliases-- }
	}
	if d.aliases > 0 && d.left.Add(-1) < 0 {
		d.add("", n.Line, tooManyAliases) // once per object, not per value
		return n, leave, false
	}
	if len(d.path) > maxDepth {
		d.add("", n.Line, tooDeep, maxDepth)
		return n, leave, false
	}
	return target(n), leave, true
}

func (d *decoder) structure(n *yaml.Node, v reflect.Value) {
	if n.Kind != yaml.MappingNode {
		d.wrongType(n, "a mapping")
		return
	}
	known := fieldsOf(v.Type())
	d.eachField(n, false, func(name, value *yaml.Node) {
		if index, ok := known[name.Value]; ok {
			d.decode(value, v.FieldByIndex(index))
			return
		}
		meant := known.nearest(name.Value)
		if meant == "" {
			d.fail(name, unknownField)
			return
		}
		d.fail(name, "unknown field; is %q meant?", meant)
		if child(n, meant) == nil {
			d.path[len(d.path)-1].name = meant
			d.expect(d.pathString()) // so that its absence is not reported
		}
	})
}

// eachField calls f for each field of a mapping, with the path set to that field.
func (d *decoder) eachField(n *yaml.Node, keys bool, f func(name, value *yaml.Node)) {
	seen := make(map[string]int, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := target(n.Content[i]), n.Content[i+1]
		if name.Kind != yaml.ScalarNode || isNull(name) {
			d.fail(name, "want a name before the colon, have %s", describeNode(name))
			continue
		}
		d.path = append(d.path, step{name: name.Value, key: keys || name.Value == ""})
		if line, ok := seen[name.Value]; ok {
			d.fail(name, "given twice, first on line %d; remove one of the two", line)
		} else {
			seen[name.Value] = name.Line
			f(name, value)
		}
		d.path = d.path[:len(d.path)-1]
	}
}

func (d *decoder) mapping(n *yaml.Node, v reflect.Value) {
	if n.Kind != yaml.MappingNode {
		d.wrongType(n, "a mapping")
		return
	}
	t := v.Type()
	v.Set(reflect.MakeMapWithSize(t, len(n.Content)/2))
	d.eachField(n, true, func(name, value *yaml.Node) {
		element := reflect.New(t.Elem()).Elem()
		d.decode(value, element)
		v.SetMapIndex(reflect.ValueOf(name.Value).Convert(t.Key()), element)
	})
}

func (d *decoder) sequence(n *yaml.Node, v reflect.Value) {
	if n.Kind != yaml.SequenceNode {
		d.wrongType(n, "a list")
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
	for i, c := range n.Content {
		d.path = append(d.path, step{index: i})
		d.decode(c, v.Index(i))
		d.path = d.path[:len(d.path)-1]
	}
}

func (d *decoder) text(n *yaml.Node, v reflect.Value) {
	_, boolean := isBool(n)
	switch {
	case n.Kind == yaml.ScalarNode && !boolean && (n.Tag == "!!str" || n.Tag == "!!timestamp"):
		v.SetString(n.Value)
	case n.Kind == yaml.ScalarNode && n.Style&yaml.TaggedStyle == 0:
		d.fail(n, "want a string, have %s; write it in quotes", describeNode(n))
	default:
		d.wrongType(n, "a string")
	}
}

func (d *decoder) integer(n *yaml.Node, v reflect.Value) {
	if n.Kind != yaml.ScalarNode || n.Tag != "!!int" {
		want := "a whole number"
		if _, err := strconv.Atoi(n.Value); err == nil && n.Tag == "!!str" {
			want = "a whole number without quotes"
		}
		d.wrongType(n, want)
		return
	}
	// Base 0 parses 0x1F, 0o17 and 017 like YAML.
	i, err := strconv.ParseInt(strings.ReplaceAll(n.Value, "_", ""), 0, 64)
	if err != nil || v.OverflowInt(i) {
		d.fail(n, "%s does not fit; want a number from %d to %d",
			n.Value, int64(math.MinInt64)>>(64-v.Type().Bits()), int64(math.MaxInt64)>>(64-v.Type().Bits()))
		return
	}
	v.SetInt(i)
}

// unmarshal decodes types with their own JSON decoder: times, quantities, IntOrString.
func (d *decoder) unmarshal(n *yaml.Node, u json.Unmarshaler) {
	value, ok := d.plain(n)
	if !ok {
		return
	}
	data, err := json.Marshal(value)
	if err == nil {
		err = u.UnmarshalJSON(data)
	}
	switch u.(type) {
	case *metav1.Time, *metav1.MicroTime:
		if err != nil {
			d.wrongType(n, "a time such as 2006-01-02T15:04:05Z")
		}
	default:
		if err != nil {
			d.fail(n, "%s: %v", describeNode(n), err)
		}
	}
}

// plain converts n to the value that encoding/json would produce.
func (d *decoder) plain(n *yaml.Node) (any, bool) {
	n, leave, ok := d.enter(n)
	defer leave()
	if !ok {
		return nil, false
	}
	switch n.Kind {
	case yaml.MappingNode:
		m := make(map[string]any, len(n.Content)/2)
		d.eachField(n, true, func(name, value *yaml.Node) {
			if v, vok := d.plain(value); vok {
				m[name.Value] = v
			} else {
				ok = false
			}
		})
		return m, ok
	case yaml.SequenceNode:
		l := make([]any, len(n.Content))
		for i, c := range n.Content {
			d.path = append(d.path, step{index: i})
			v, vok := d.plain(c)
			l[i], ok = v, ok && vok
			d.path = d.path[:len(d.path)-1]
		}
		return l, ok
	}
	if b, ok := isBool(n); ok {
		return b, true
	}
	switch n.Tag {
	case "!!null":
		return nil, true
	case "!!int", "!!float":
		var v any
		if err := n.Decode(&v); err == nil {
			return v, true
		}
	case "!!str", "!!timestamp":
		return n.Value, true
	}
	d.fail(n, "%s is not read", describeNode(n))
	return nil, false
}
