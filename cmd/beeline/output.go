// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"
)

// outputFormat is the value of -o.
type outputFormat struct {
	format *string
	wide   bool // there is a second table
}

var _ pflag.Value = outputFormat{}

func (o outputFormat) String() string {
	if o.format == nil {
		return ""
	}
	return *o.format
}

func (o outputFormat) Type() string {
	if o.wide {
		return "table|wide|json|yaml"
	}
	return "table|json|yaml"
}

func (o outputFormat) Set(text string) error {
	switch {
	case text == "table", text == "json", text == "yaml", text == "wide" && o.wide:
		*o.format = text
		return nil
	case o.wide:
		return fmt.Errorf("table, wide, json or yaml")
	}
	return fmt.Errorf("table, json or yaml")
}

func addOutputFlag(cmd *cobra.Command, format *string) {
	*format = "table"
	cmd.Flags().VarP(outputFormat{format: format}, "output", "o", "how to print")
	cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json", "yaml"}, cobra.ShellCompDirectiveNoFileComp))
}

// addWideOutput adds to the formats one for a table with what is counted.
func addWideOutput(cmd *cobra.Command, format *string) {
	f := cmd.Flags().Lookup("output")
	f.Value, f.Usage = outputFormat{format: format, wide: true}, "how to print; wide: what clients outside of the cluster have asked and got"
}

// write prints a value in the format asked for; table prints it for people.
func write(w io.Writer, format string, value any, table func(io.Writer)) error {
	switch format {
	case "json":
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(value)
	case "yaml":
		text, err := yaml.Marshal(value)
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
