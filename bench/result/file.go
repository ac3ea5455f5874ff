// SPDX-License-Identifier: Apache-2.0

package result

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Write atomically writes the file.
func (f *File) Write(path string) error {
	text, err := json.MarshalIndent(f, "", " ")
	if err != nil {
		return err
	}
	hidden := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	if err := os.WriteFile(hidden, append(text, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(hidden, path)
}

// Read reads a file that Write has written. An error names the file and what is wrong with it.
func Read(path string) (*File, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	f, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

func parse(text []byte) (*File, error) {
	var version struct {
		Schema *int `json:"schema"`
	}
	if err := json.Unmarshal(text, &version); err != nil {
		return nil, fmt.Errorf("this is no JSON object (%w); `bench -o FILE` writes one", err)
	}
	switch {
	case version.Schema == nil:
		return nil, errors.New(`there is no "schema": this is not what ` + "`bench -o FILE` writes")
	case *version.Schema != Schema:
		return nil, fmt.Errorf("the schema is %d, and this program reads %d: measure again, or use the bench of that version", *version.Schema, Schema)
	}
	f := &File{}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(f); err != nil {
		return nil, err
	}
	return f, f.check()
}

// check checks that each row is complete, and that no two are the same.
func (f *File) check() error {
	seen := map[string]bool{}
	for i, r := range f.Rows {
		switch id := r.Identity(); {
		case r.Part == "" || r.Scenario == "" || r.Side == "" || r.Name == "" || r.Unit == "":
			return fmt.Errorf("row %d (%s): part, scenario, side, metric or unit is missing", i, r.Series)
		case r.Better != Lower && r.Better != Higher && r.Better != None:
			return fmt.Errorf("row %d (%s, %s): %q is no direction", i, r.Series, r.Name, r.Better)
		case len(r.Samples) == 0:
			return fmt.Errorf("row %d (%s, %s): there are no samples", i, r.Series, r.Name)
		case seen[id]:
			return fmt.Errorf("row %d (%s, %s) is a duplicate", i, r.Series, r.Name)
		default:
			seen[id] = true
		}
	}
	return nil
}
