// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"beeline.io/beeline/internal/api"
)

// outputFormat is the value of -o.
type outputFormat struct {
	format  *string
	formats []string
}

var _ pflag.Value = outputFormat{}

func (o outputFormat) String() string {
	if o.format == nil {
		return ""
	}
	return *o.format
}

func (o outputFormat) Type() string { return strings.Join(o.formats, "|") }

func (o outputFormat) Set(text string) error {
	if !slices.Contains(o.formats, text) {
		last := len(o.formats) - 1
		return fmt.Errorf("%s or %s", strings.Join(o.formats[:last], ", "), o.formats[last])
	}
	*o.format = text
	return nil
}

// addOutputFlag defines -o with these formats; the first is the default. The formats default to table, json and
// yaml.
func addOutputFlag(cmd *cobra.Command, format *string, formats ...string) {
	if len(formats) == 0 {
		formats = []string{"table", "json", "yaml"}
	}
	*format = formats[0]
	cmd.Flags().VarP(outputFormat{format, formats}, "output", "o", "output format")
	cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
}

// write prints a value in the requested format; the function table prints it as text.
func write(w io.Writer, format string, value any, table func(io.Writer)) error {
	switch format {
	case "json":
		text, err := versioned(value)
		if err != nil {
			return err
		}
		var indented bytes.Buffer
		if err := json.Indent(&indented, text, "", "  "); err != nil {
			return err
		}
		indented.WriteByte('\n')
		_, err = w.Write(indented.Bytes())
		return err
	case "yaml":
		text, err := versioned(value)
		if err == nil {
			text, err = yaml.JSONToYAML(text)
		}
		if err == nil {
			_, err = w.Write(text)
		}
		return err
	}
	var text bytes.Buffer
	table(&text)
	_, err := w.Write(text.Bytes())
	return err
}

// versioned returns the JSON of an object with schemaVersion as its first field. It wraps a list in an object
// with the field "items".
func versioned(value any) ([]byte, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	if bytes.Equal(text, []byte("null")) {
		text = []byte("[]")
	}
	head := `{"schemaVersion":` + api.SchemaVersion
	switch fields := bytes.TrimPrefix(text, []byte("{")); {
	case len(fields) == len(text):
		return fmt.Appendf(nil, `%s,"items":%s}`, head, text), nil
	case fields[0] == '}':
		return fmt.Appendf(nil, "%s}", head), nil
	default:
		return fmt.Appendf(nil, "%s,%s", head, fields), nil
	}
}

// table prints rows in columns, below a header.
type table struct {
	*tabwriter.Writer
}

// newTable starts a table; without headers it prints only rows.
func newTable(w io.Writer, headers bool, columns ...string) table {
	t := table{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)}
	if headers {
		t.row(columns)
	}
	return t
}

func (t table) row(cells []string) { fmt.Fprintln(t, strings.Join(cells, "\t")) }
