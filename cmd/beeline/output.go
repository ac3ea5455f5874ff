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
type outputFormat struct{ format *string }

var _ pflag.Value = outputFormat{}

func (o outputFormat) String() string {
	if o.format == nil {
		return ""
	}
	return *o.format
}

func (outputFormat) Type() string { return "table|json|yaml" }

func (o outputFormat) Set(text string) error {
	switch text {
	case "table", "json", "yaml":
		*o.format = text
		return nil
	}
	return fmt.Errorf("table, json or yaml")
}

func addOutputFlag(cmd *cobra.Command, format *string) {
	*format = "table"
	cmd.Flags().VarP(outputFormat{format}, "output", "o", "how to print")
	cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json", "yaml"}, cobra.ShellCompDirectiveNoFileComp))
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
