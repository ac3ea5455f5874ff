// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"beeline.io/beeline/internal/suggest"
)

// A setting is a value of the configuration file.
type setting struct {
	flag  string
	place string // its keys in the file, with dots between them
	value any
}

// readConfigFile sets the flags that the command line did not set.
func readConfigFile(path string, fs *pflag.FlagSet) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	tree := map[string]any{}
	if err := yaml.UnmarshalStrict(text, &tree); err != nil {
		return fmt.Errorf("--config %s: %w", path, err)
	}
	settings, errs := flatten(fs, nil, tree)
	places := map[string]string{}
	for _, s := range settings {
		other, twice := places[s.flag]
		places[s.flag] = s.place
		switch {
		case twice:
			errs = append(errs, fmt.Errorf("%s and %s are the same setting: remove one of them", min(other, s.place), max(other, s.place)))
		case !fs.Lookup(s.flag).Changed:
			errs = append(errs, s.set(fs))
		}
	}
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	for i, err := range errs {
		errs[i] = fmt.Errorf("--config %s: %w", path, err)
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}

// set sets the flag.
func (s *setting) set(fs *pflag.FlagSet) error {
	if b, ok := s.value.(bool); ok && fs.Lookup(s.flag).Value.Type() == "string" {
		s.value = map[bool]string{false: "off", true: "on"}[b] // YAML parses these words as booleans
	}
	if err := fs.Set(s.flag, settingText(s.value)); err != nil {
		return fmt.Errorf("%s: %w", s.place, PlainValue(err))
	}
	return nil
}

// flatten returns the settings of a map of the file: the name of a flag is the keys that lead to its value, with
// hyphens between them, such as "edge: {mode: tc}" for edge-mode.
func flatten(fs *pflag.FlagSet, keys []string, tree map[string]any) (all []setting, errs []error) {
	for key, value := range tree {
		at := append(slices.Clone(keys), key)
		name, place := strings.Join(at, "-"), strings.Join(at, ".")
		group, isMap := value.(map[string]any)
		isGroup := len(namesBelow(fs, name)) > 0
		flag := fs.Lookup(name)
		known := flag != nil && name != "config" && name != "help"
		switch {
		case isGroup && (isMap || value == nil && !known):
			found, wrong := flatten(fs, at, group)
			all, errs = append(all, found...), append(errs, wrong...)
		case !known:
			errs = append(errs, unknownSetting(fs, keys, place, key))
		case isMap:
			errs = append(errs, fmt.Errorf("%s: give a value or a list, not a map", place))
		default:
			all = append(all, setting{name, place, value})
		}
	}
	return all, errs
}

// unknownSetting suggests a key that is known there.
func unknownSetting(fs *pflag.FlagSet, keys []string, place, key string) error {
	known := FlagNames(fs)
	if len(keys) > 0 {
		known = namesBelow(fs, strings.Join(keys, "-"))
	}
	return fmt.Errorf("unknown setting %q%s", place, suggest.DidYouMean(key, known))
}

// namesBelow returns the rest of the names of flags that begin with a group, such as "mode" for edge-mode.
func namesBelow(fs *pflag.FlagSet, group string) (all []string) {
	for _, name := range FlagNames(fs) {
		if rest, ok := strings.CutPrefix(name, group+"-"); ok {
			all = append(all, rest)
		}
	}
	return all
}

func settingText(value any) string {
	switch v := value.(type) {
	case []any:
		parts := make([]string, len(v))
		for i, p := range v {
			parts[i] = settingText(p)
		}
		return strings.Join(parts, ",")
	case float64:
		if v == float64(int64(v)) {
			return fmt.Sprint(int64(v))
		}
	case nil:
		return ""
	}
	return fmt.Sprint(value)
}
