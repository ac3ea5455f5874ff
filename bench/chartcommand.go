// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"beeline.io/beeline/bench/chart"
	"beeline.io/beeline/bench/result"
)

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
