// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"beeline.io/beeline/internal/agent"
	"beeline.io/beeline/internal/util/plural"
)

func newCheckCommand() *cobra.Command {
	var config agent.Config
	var v view
	cmd := &cobra.Command{
		Use:   "check [--config FILE] [--kubeconfig FILE | --manifests PATH]",
		Short: "Check a configuration and manifests without starting an agent",
		Long: `Takes the flags of "beeline agent" and reports what an agent started with them would
find wrong in the configuration file, the flags, the kubeconfig and each object of the
manifests. Nothing is loaded or attached, no server is contacted, and no privileges are needed.
Addresses, ports, devices and cgroups are those of this machine: run it on the node, or on
a similar one.

Exit code 2 if the configuration is invalid, 3 if the manifests have errors, 4 if they
have only warnings. docs/operate/conditions.md explains each condition.`,
		Example: `  beeline check --manifests vips.yaml
  beeline check --config /etc/beeline.yaml`,
		Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := config.Complete(cmd.Flags()); err != nil {
				return exitError{exitUsage, err}
			}
			checked, err := agent.Check(config)
			if err != nil {
				return exitError{exitUsage, err}
			}
			if err := write(cmd.OutOrStdout(), v.output, checked, func(w io.Writer) { checkText(w, checked) }); err != nil {
				return err
			}
			return judged(checked.Conditions)
		},
	}
	config.AddFlags(cmd.Flags())
	v.addFlags(cmd)
	return cmd
}

func checkText(w io.Writer, c *agent.Checked) {
	conditionsText(w, headline(c.Conditions), c.Conditions, len(c.Conditions))
	if !c.FromManifests {
		fmt.Fprintf(w, "The configuration is valid. Services come from %s, which was not contacted.\n", c.Source)
		return
	}
	fmt.Fprintf(w, "%s: Services, and Pods with hostPorts: %d, with %s\n", c.Source, c.Services, plural.Of(c.Frontends, "frontend"))
}
