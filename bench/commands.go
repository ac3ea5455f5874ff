// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"beeline.io/beeline/bench/chart"
	"beeline.io/beeline/bench/compare"
	"beeline.io/beeline/bench/endurance"
	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/bench/result"
)

func docCommand() *cobra.Command {
	var into string
	c := &cobra.Command{
		Use: "doc RESULTS.json", Short: "Print the text of a run, or write it into a page with the run's charts", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			results, err := result.Read(args[0])
			if err != nil {
				return err
			}
			if into == "" {
				printAll(&harness.Report{Out: c.OutOrStdout(), Results: results})
				return nil
			}
			if err := document(results, into); err != nil {
				return fmt.Errorf("--into: %w", err)
			}
			return nil
		},
	}
	c.Flags().StringVar(&into, "into", "", "Markdown page in which to replace the text between the marks, with pictures in a folder of the page's name")
	return c
}

// A page has the text and the pictures of a run between these lines.
const (
	markText   = "results"
	markCharts = "charts"
	markBegin  = "<!-- %s: begin; `bench doc --into` replaces this -->\n"
	markEnd    = "<!-- %s: end -->\n"
)

// document replaces text and pictures in a page.
func document(results *result.File, path string) error {
	page, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	printAll(&harness.Report{Out: &text, Results: results})
	mark := markText
	if results.Only(endurance.PartName) {
		mark = endurance.PartName
	}
	if page, err = replace(page, mark, "```\n"+text.String()+"```\n"); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if mark != markText { // it has its own marks, and no charts
		return os.WriteFile(path, page, 0o644)
	}
	folder := strings.TrimSuffix(path, filepath.Ext(path))
	charts := chart.All(results)
	var pictures strings.Builder
	for _, c := range charts {
		fmt.Fprintf(&pictures, "![%s](%s/%s.svg)\n\n", c.Title(), filepath.Base(folder), c.Name)
	}
	if page, err = replace(page, markCharts, strings.TrimSuffix(pictures.String(), "\n")); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	// Otherwise pictures of removed measurements would stay.
	old, err := filepath.Glob(filepath.Join(folder, "*.svg"))
	if err != nil {
		return err
	}
	for _, picture := range old {
		if err := os.Remove(picture); err != nil {
			return err
		}
	}
	if _, err := chart.Write(folder, charts, "svg"); err != nil {
		return err
	}
	return os.WriteFile(path, page, 0o644)
}

// printAll prints what the run with these results printed.
func printAll(r *harness.Report) {
	r.PrintHead()
	for _, p := range parts(nil, nil) {
		if r.Results.Has(p.Name) {
			r.PrintTitle(p)
			p.Print(r)
		}
	}
	r.PrintFoot()
}

// replace replaces the text between the two marks of a name.
func replace(page []byte, name, what string) ([]byte, error) {
	return replaceBetween(page, fmt.Sprintf(markBegin, name), fmt.Sprintf(markEnd, name), name, what)
}

func replaceBetween(page []byte, begin, end, name, what string) ([]byte, error) {
	before, rest, found := bytes.Cut(page, []byte(begin))
	_, after, closed := bytes.Cut(rest, []byte(end))
	if !found || !closed {
		return nil, errors.New("there are no lines\n" + begin + end + "one after the other, between which to put the " + name)
	}
	return []byte(string(before) + begin + what + end + string(after)), nil
}

func chartCommand() *cobra.Command {
	var folder string
	var kinds []string
	c := &cobra.Command{
		Use: "chart RESULTS.json --out DIR", Short: "Draw a run's results", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			results, err := result.Read(args[0])
			if err != nil {
				return err
			}
			files, err := chart.Write(folder, chart.All(results), kinds...)
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), strings.Join(files, "\n"))
			return err
		},
	}
	c.Flags().StringVar(&folder, "out", "", "folder for the pictures; created if missing")
	c.Flags().StringSliceVar(&kinds, "kind", []string{"svg", "png"}, "of the pictures")
	c.MarkFlagRequired("out")
	return c
}

func compareCommand() *cobra.Command {
	var asJSON, fail bool
	c := &cobra.Command{
		Use: "compare OLD.json NEW.json", Short: "Report what became better or worse between two runs", Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			old, err := result.Read(args[0])
			if err != nil {
				return err
			}
			now, err := result.Read(args[1])
			if err != nil {
				return err
			}
			comparison, err := compare.Of(old, now)
			if err != nil {
				return fmt.Errorf("%s and %s: %w", args[0], args[1], err)
			}
			write := comparison.WriteText
			if asJSON {
				write = comparison.WriteJSON
			}
			if err := write(c.OutOrStdout()); err != nil {
				return err
			}
			if fail && comparison.Worse > 0 {
				return fmt.Errorf("%d of %d rows are worse", comparison.Worse, len(comparison.Rows))
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().BoolVar(&fail, "fail-on-worse", false, "fail if a row is worse by more than chance")
	return c
}
