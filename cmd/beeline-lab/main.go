// SPDX-License-Identifier: Apache-2.0

// Command beeline-lab creates small clusters of network namespaces on this machine for manual tests of Beeline.
// docs/develop/lab.md describes them.
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"beeline.io/beeline/internal/util/printable"
	"beeline.io/beeline/test/lab"
)

// Exit codes. `exec` returns the exit code of its command instead.
const (
	exitFailure = 1
	exitUsage   = 2
)

// exitError is an error with its own exit code.
type exitError struct {
	code int
	err  error
}

func (e exitError) Error() string { return e.err.Error() }
func (e exitError) Unwrap() error { return e.err }

func main() {
	lab.Main() // does not return in helper processes and servers of a lab, which run this program
	err := newRootCommand().Execute()
	if err == nil {
		return
	}
	fmt.Fprintln(printable.NewWriter(os.Stderr), "beeline-lab:", err)
	code := exitFailure
	if coded := (exitError{}); errors.As(err, &coded) {
		code = coded.code
	}
	os.Exit(code)
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "beeline-lab",
		Short: "Small clusters of network namespaces on this machine",
		Long: `A lab is two nodes with three pods each, a client outside and a routing fabric
between them: network namespaces and cgroups on this machine, in both address
families. It does not touch the machine's own network. Needs root.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          usage(cobra.NoArgs),
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetOut(printable.NewWriter(os.Stdout))
	root.SetErr(printable.NewWriter(os.Stderr))
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return exitError{exitUsage, fmt.Errorf("%w; `%s --help` lists the flags", err, cmd.CommandPath())}
	})
	root.AddCommand(newUpCommand(), newDownCommand(), newExecCommand(), newListCommand())
	return root
}

// usage turns an argument error into a usage error.
func usage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return exitError{exitUsage, fmt.Errorf("%w; `%s --help` explains its use", err, cmd.CommandPath())}
		}
		return nil
	}
}
