// SPDX-License-Identifier: Apache-2.0

// Command beeline is the agent that runs on a node, and the tool to inspect it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"beeline.io/beeline/internal/agent"
	"beeline.io/beeline/internal/util/printable"
	"beeline.io/beeline/internal/util/suggest"
)

// version is set at build time from the commit.
var version = "development"

// Exit codes.
const (
	exitFailure  = 1
	exitUsage    = 2
	exitErrors   = 3 // status and check: at least one error condition
	exitWarnings = 4 // status and check: warnings, but no errors
)

// exitError is an error with its own exit code; it prints nothing if err is nil.
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
		fmt.Fprintln(printable.NewWriter(os.Stderr), "beeline:", withHint(err))
	}
	stop()
	os.Exit(code)
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "beeline",
		Short: "Kubernetes Services by the shortest path",
		Long: `Beeline takes traffic to Kubernetes Services by the shortest path. The address of a
Service is replaced by a pod's address once, when a program calls connect(), and no packet
of that connection is translated.

Exit codes: 0 success, 1 failure, 2 usage error; status and check: 3 for errors, 4 for
warnings only.`,
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          knownCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetVersionTemplate("beeline {{.Version}}\n")
	// Output may contain text from untrusted sources.
	root.SetOut(printable.NewWriter(os.Stdout))
	root.SetErr(printable.NewWriter(os.Stderr))
	root.SetFlagErrorFunc(usageError)
	root.AddCommand(newAgentCommand(), newStatusCommand(), newServiceCommand(), newBackendCommand(), newFlowCommand(), newOffloadCommand(), newMeshCommand(), newMonitorCommand(), newExplainCommand(),
		newCheckCommand(), newCleanupCommand(), newVersionCommand())
	return root
}

// commandGroup returns a command that has only subcommands.
func commandGroup(use, short string, subcommands ...*cobra.Command) *cobra.Command {
	group := &cobra.Command{
		Use: use, Short: short, Args: knownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	group.AddCommand(subcommands...)
	return group
}

// knownCommand is the Args function of commands that have only subcommands.
func knownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, c := range cmd.Commands() {
		names = append(names, c.Name())
	}
	return exitError{exitUsage, fmt.Errorf("%s has no command %q%s", cmd.CommandPath(), args[0], suggest.DidYouMean(args[0], names))}
}

// usageError gives flag errors their exit code, and suggests a flag with a similar name.
func usageError(cmd *cobra.Command, err error) error {
	if _, name, ok := strings.Cut(err.Error(), "unknown flag: --"); ok {
		err = fmt.Errorf("%w%s", err, suggest.DidYouMean(name, agent.FlagNames(cmd.Flags())))
	}
	return exitError{exitUsage, fmt.Errorf("%w; `%s --help` lists them", agent.PlainValue(err), cmd.CommandPath())}
}

// usage turns an argument error into a usage error.
func usage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			if way := valueWithoutEquals(cmd, args); way != "" {
				return exitError{exitUsage, errors.New(way)}
			}
			return exitError{exitUsage, fmt.Errorf("%w; usage: %s", err, cmd.UseLine())}
		}
		return nil
	}
}

// valueWithoutEquals says how to write the value of a flag that may stand alone, such as a boolean one, if one of the
// arguments is meant to be that: the word after such a flag is an argument of its own. It returns "" if none is.
func valueWithoutEquals(cmd *cobra.Command, args []string) string {
	var ways []string
	for _, word := range args {
		cmd.Flags().Visit(func(f *pflag.Flag) {
			if value, ok := valueOf(f.Value.Type(), word); ok && f.NoOptDefVal != "" {
				ways = append(ways, fmt.Sprintf("--%s=%s", f.Name, value))
			}
		})
		if len(ways) > 0 {
			return fmt.Sprintf("the word %q is no value of the flag before it, because that flag may stand alone: write %s", word, strings.Join(ways, ", or "))
		}
	}
	return ""
}

// valueOf returns a word as a value of a flag's type; false if it is meant to be none.
func valueOf(kind, word string) (string, bool) {
	switch kind {
	case "bool":
		switch strings.ToLower(word) {
		case "on", "yes":
			return "true", true
		case "off", "no":
			return "false", true
		}
		_, err := strconv.ParseBool(word)
		return word, err == nil
	case "duration":
		_, err := time.ParseDuration(word)
		return word, err == nil
	}
	return word, true
}

// exclusive refuses two flags at once, because one of them would have no effect.
func exclusive(cmd *cobra.Command, a, b string) {
	beforeRun(cmd, func() error {
		if cmd.Flags().Changed(a) && cmd.Flags().Changed(b) {
			return exitError{exitUsage, fmt.Errorf("--%s has no effect with --%s: leave one of them out", a, b)}
		}
		return nil
	})
}

// beforeRun runs do after the flags are parsed, before the command's own PreRun.
func beforeRun(cmd *cobra.Command, do func() error) {
	before := cmd.PreRunE
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		if before != nil {
			if err := before(cmd, args); err != nil {
				return err
			}
		}
		return do()
	}
}

// versionReport is what `beeline version -o json` prints.
type versionReport struct {
	Version  string `json:"version"`
	Go       string `json:"go"`       // of the toolchain that built the program, such as go1.26.1
	Platform string `json:"platform"` // such as linux/amd64
}

func newVersionCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			report := versionReport{version, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			return write(cmd.OutOrStdout(), format, report, func(w io.Writer) { fmt.Fprintln(w, "beeline", version) })
		},
	}
	addOutputFlag(cmd, &format)
	return cmd
}
