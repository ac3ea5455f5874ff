// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"beeline.io/beeline/internal/agent"
	"beeline.io/beeline/internal/component"
	"beeline.io/beeline/internal/util/printable"
)

func newAgentCommand() *cobra.Command {
	var config agent.Config
	cmd := &cobra.Command{
		Use:   "agent [--kubeconfig FILE | --manifests PATH]",
		Short: "Run the agent of this node",
		Long: `Runs the agent of this node in the foreground. It reads Services from the API
server or from manifests, watches them for changes, and attaches the datapath.
Stopping it leaves everything attached and serving; "beeline cleanup" removes
it.`,
		Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := config.Complete(cmd.Flags()); err != nil {
				return exitError{exitUsage, err}
			}
			if err := errors.Join(checkCapabilities(), checkFileLimit()); err != nil {
				return err
			}
			return agent.Run(cmd.Context(), config, version, newLogger(&config))
		},
	}
	config.AddFlags(cmd.Flags())
	return cmd
}

// components read what they have pinned, for commands that work without an agent.
func components() component.List { return agent.Components() }

func newLogger(config *agent.Config) *slog.Logger {
	config.Logged = new(slog.LevelVar) // info
	config.Logged.UnmarshalText([]byte(config.LogLevel))
	options := &slog.HandlerOptions{Level: config.Logged}
	out := printable.NewWriter(os.Stderr) // the handlers serialize writes
	if config.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(out, options))
	}
	return slog.New(slog.NewTextHandler(out, options))
}
