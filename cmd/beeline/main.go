// SPDX-License-Identifier: Apache-2.0

// Command beeline is the agent that runs on a node, and the tool to look into
// it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"beeline.io/beeline/internal/agent"
	"beeline.io/beeline/internal/nearest"
	"beeline.io/beeline/internal/printable"
	"beeline.io/beeline/test/lab"
)

// version is set at build time from the commit.
var version = "development"

// The exit codes. Commands that run another program pass its code on.
const (
	exitFailure  = 1
	exitUsage    = 2
	exitDegraded = 3 // status: the agent answers, and not all is well
)

// exitError is an error with an exit code of its own; silent if err is nil.
type exitError struct {
	code int
	err  error
}

func (e exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e exitError) Unwrap() error { return e.err }

func main() {
	lab.Main() // does not return in the helper processes that a lab starts
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	raiseFileLimit()
	err := newRootCommand().ExecuteContext(ctx)
	if err == nil {
		return
	}
	code := exitFailure
	if coded := (exitError{}); errors.As(err, &coded) {
		code = coded.code
		err = coded.err
	}
	if err != nil {
		fmt.Fprintln(printable.NewWriter(os.Stderr), "beeline:", withWayOut(err))
	}
	stop()
	os.Exit(code)
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "beeline",
		Short: "Kubernetes Services by the shortest way",
		Long: `Beeline takes traffic to Kubernetes Services the shortest way: the address of a
Service becomes that of a pod when a program connects, once, and no packet is
ever translated.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 (status) not all is well.`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          knownCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	// Whatever is printed may have text from outside in it.
	root.SetOut(printable.NewWriter(os.Stdout))
	root.SetErr(printable.NewWriter(os.Stderr))
	root.SetFlagErrorFunc(usageError)
	root.AddCommand(newAgentCommand(), newStatusCommand(), newServiceCommand(), newBackendCommand(), newFlowCommand(), newMonitorCommand(), newExplainCommand(),
		newCleanupCommand(), newVersionCommand(), newLabCommand())
	return root
}

// knownCommand is the Args of commands that only have others below them.
func knownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, c := range cmd.Commands() {
		names = append(names, c.Name())
	}
	return exitError{exitUsage, fmt.Errorf("%s has no command %q%s", cmd.CommandPath(), args[0], nearest.Question(args[0], names))}
}

// usageError gives wrong flags their exit code, and names the flag that was
// probably meant.
func usageError(cmd *cobra.Command, err error) error {
	if _, name, ok := strings.Cut(err.Error(), "unknown flag: --"); ok {
		err = fmt.Errorf("%w%s", err, nearest.Question(name, agent.FlagNames(cmd.Flags())))
	}
	return exitError{exitUsage, fmt.Errorf("%w; `%s --help` lists them", agent.PlainValue(err), cmd.CommandPath())}
}

// usage turns a complaint about arguments into a usage error.
func usage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return exitError{exitUsage, fmt.Errorf("%w; usage: %s", err, cmd.UseLine())}
		}
		return nil
	}
}

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "beeline", version)
			return err
		},
	}
}
