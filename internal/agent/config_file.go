// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v4"

	"beeline.io/beeline/internal/cluster/source/manifest"
	"beeline.io/beeline/internal/util/suggest"
)

// A setting is a value of the configuration file.
type setting struct {
	flag  string
	place string // its keys in the file, with dots between them
	line  int    // counts from 1
	value *yaml.Node
}

// settingError is an error at a line of the configuration file.
type settingError struct {
	line int
	text string
}

// readConfigFile sets the flags that the command line did not set.
func readConfigFile(path string, flags *pflag.FlagSet) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("--config: %w", configPathError(err))
	}
	tree, err := manifest.ParseYAML(text)
	if err != nil {
		return fmt.Errorf("--config %s:%w", path, err)
	}
	if tree == nil {
		return nil
	}
	if tree.Kind != yaml.MappingNode {
		return fmt.Errorf("--config %s:%d: want settings as in \"max-flows: 100000\", have %s", path, tree.Line, manifest.Describe(tree))
	}
	settings, errs := flatten(flags, nil, tree)
	places := map[string]setting{}
	for _, s := range settings {
		other, twice := places[s.flag]
		places[s.flag] = s
		switch {
		case twice:
			errs = append(errs, settingError{s.line, fmt.Sprintf("%s and %s (line %d) are the same setting: remove one of them", s.place, other.place, other.line)})
		case !flags.Lookup(s.flag).Changed:
			if err := s.set(flags); err != nil {
				errs = append(errs, settingError{s.line, err.Error()})
			}
		}
	}
	slices.SortFunc(errs, func(a, b settingError) int {
		return cmp.Or(cmp.Compare(a.line, b.line), strings.Compare(a.text, b.text))
	})
	var all []error
	for _, e := range errs {
		all = append(all, fmt.Errorf("--config %s:%d: %s", path, e.line, e.text))
	}
	return errors.Join(all...)
}

// configPathError says what to do about a file that cannot be read.
func configPathError(err error) error {
	path := (*fs.PathError)(nil)
	switch {
	case !errors.As(err, &path):
		return err
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s: there is no such file: create it, or correct the path", path.Path)
	}
	return fmt.Errorf("%s: %w: give a file that can be read", path.Path, path.Err)
}

// set sets the flag.
func (s *setting) set(flags *pflag.FlagSet) error {
	value, ok := settingText(s.value, flags.Lookup(s.flag).Value.Type())
	if !ok {
		return fmt.Errorf("%s: give a value or a list of values, not %s", s.place, manifest.Describe(s.value))
	}
	if err := flags.Set(s.flag, value); err != nil {
		return fmt.Errorf("%s: %w", s.place, PlainValue(err))
	}
	return nil
}

// flatten returns the settings of a mapping of the file: the name of a flag is the keys that lead to its value, with
// hyphens between them, such as "edge: {mode: tc}" for edge-mode.
func flatten(flags *pflag.FlagSet, keys []string, tree *yaml.Node) (all []setting, errs []settingError) {
	lines := map[string]int{}
	for i := 0; i+1 < len(tree.Content); i += 2 {
		key, value := tree.Content[i].Value, manifest.Target(tree.Content[i+1])
		line := tree.Content[i].Line
		at := append(slices.Clone(keys), key)
		name, place := strings.Join(at, "-"), strings.Join(at, ".")
		fail := func(format string, args ...any) {
			errs = append(errs, settingError{line, fmt.Sprintf(format, args...)})
		}
		if first, twice := lines[key]; twice {
			fail("%s: given twice, first on line %d; remove one of the two", place, first)
			continue
		}
		lines[key] = line
		isMap, isGroup := value.Kind == yaml.MappingNode, len(namesBelow(flags, name)) > 0
		flag := flags.Lookup(name)
		known := flag != nil && name != "config" && name != "help"
		switch {
		case isGroup && (isMap || isNull(value) && !known):
			found, wrong := flatten(flags, at, value)
			all, errs = append(all, found...), append(errs, wrong...)
		case !known && isGroup:
			fail("unknown setting %q: it is a group, as in \"%[1]s: {%[2]s: ...}\"", place, namesBelow(flags, name)[0])
		case !known:
			fail("%s", unknownSetting(flags, keys, place, key))
		case isMap:
			fail("%s: give a value or a list, not a map", place)
		default:
			all = append(all, setting{name, place, line, value})
		}
	}
	return all, errs
}

// unknownSetting suggests a key that is known there.
func unknownSetting(flags *pflag.FlagSet, keys []string, place, key string) string {
	known := FlagNames(flags)
	if len(keys) > 0 {
		known = namesBelow(flags, strings.Join(keys, "-"))
	}
	return fmt.Sprintf("unknown setting %q%s", place, cmp.Or(suggest.DidYouMean(key, known), ": `beeline agent --help` lists them"))
}

// namesBelow returns the rest of the names of flags that begin with a group, such as "mode" for edge-mode.
func namesBelow(flags *pflag.FlagSet, group string) (all []string) {
	for _, name := range FlagNames(flags) {
		if rest, ok := strings.CutPrefix(name, group+"-"); ok {
			all = append(all, rest)
		}
	}
	return all
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

// booleans are the words of YAML 1.1 for true and false, in lower case.
var booleans = map[string]bool{"true": true, "yes": true, "on": true, "false": false, "no": false, "off": false}

// settingText returns a value as the command line has it; false if it is neither a value nor a list of values.
func settingText(n *yaml.Node, kind string) (string, bool) {
	n = manifest.Target(n)
	switch n.Kind {
	case yaml.ScalarNode:
		on, word := booleans[strings.ToLower(n.Value)]
		switch {
		case isNull(n):
			return "", true
		case !word || n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0:
			return n.Value, true
		case kind == "string": // these have off, and some have on
			return map[bool]string{false: "off", true: "on"}[on], true
		}
		return fmt.Sprint(on), true
	case yaml.SequenceNode:
		parts := make([]string, len(n.Content))
		for i, part := range n.Content {
			text, ok := settingText(part, "")
			if !ok || manifest.Target(part).Kind != yaml.ScalarNode {
				return "", false
			}
			parts[i] = text
		}
		return strings.Join(parts, ","), true
	}
	return "", false
}
