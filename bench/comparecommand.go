// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"beeline.io/beeline/bench/compare"
	"beeline.io/beeline/bench/result"
)

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
