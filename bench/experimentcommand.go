// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"beeline.io/beeline/bench/chart"
	"beeline.io/beeline/bench/result"
)

// A page has the experiment between these lines.
const (
	experimentBegin = "<!-- experiment: begin; `bench experiment --into` replaces this -->\n"
	experimentEnd   = "<!-- experiment: end -->\n"
)

func experimentCommand() *cobra.Command {
	var into, folder string
	c := &cobra.Command{
		Use: "experiment RATES.json INSTRUCTIONS.json", Short: "Compare a published measurement of balancers with local results", Args: cobra.ExactArgs(2),
		Long: "One table, and one picture, of the results of the parts rates and instructions, with the same experiment as published by others.",
		RunE: func(c *cobra.Command, args []string) (err error) {
			var e experiment
			if e.rates, err = result.Read(args[0]); err != nil {
				return err
			}
			if e.instructions, err = result.Read(args[1]); err != nil {
				return err
			}
			if err := e.check(); err != nil {
				return fmt.Errorf("%s and %s: %w", args[0], args[1], err)
			}
			if folder != "" {
				if _, err := chart.Write(folder, []chart.Chart{e.chart()}, "svg", "png"); err != nil {
					return err
				}
			}
			if into != "" {
				return e.document(into)
			}
			_, err = fmt.Fprint(c.OutOrStdout(), e.markdown())
			return err
		},
	}
	c.Flags().StringVar(&folder, "out", "", "folder for the picture; created if missing")
	c.Flags().StringVar(&into, "into", "", "Markdown page in which to replace the text between the marks, with the picture in the folder pictures next to it")
	return c
}

// document writes table and picture into a page.
func (e experiment) document(path string) error {
	page, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("--into: %w", err)
	}
	const pictures = "pictures"
	c := e.chart()
	text := fmt.Sprintf("%s\n![%s](%s/%s.svg)\n", e.markdown(), c.Title(), pictures, c.Name)
	if page, err = replaceBetween(page, experimentBegin, experimentEnd, "experiment", text); err != nil {
		return fmt.Errorf("--into: %s: %w", path, err)
	}
	if _, err := chart.Write(filepath.Join(filepath.Dir(path), pictures), []chart.Chart{c}, "svg"); err != nil {
		return err
	}
	return os.WriteFile(path, page, 0o644)
}
