// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"beeline.io/beeline/internal/agent"
	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/printable"
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

func newCleanupCommand() *cobra.Command {
	var pins, socket string
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Detach everything and restore the node",
		Long: `Detaches all programs and removes all tables, pins and mounts that an agent created.
Refused while an agent is running. Services are no longer translated
afterwards. TCP connections that a socket hook has translated continue; UDP
sockets that it has connected to a backend are ended with ECONNABORTED, because
nothing would tell them when their backend goes.`,
		Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !filepath.IsAbs(pins) {
				return exitError{exitUsage, fmt.Errorf("--pins %q: not an absolute path", pins)}
			}
			return cleanup(cmd.OutOrStdout(), pins, socket)
		},
	}
	cmd.Flags().StringVar(&pins, pinsFlag, agent.DefaultBPFFS, "directory of the agent's pinned objects")
	cmd.Flags().StringVar(&socket, socketFlag, agent.DefaultSocket, "unix socket that a killed agent may have left behind")
	return cmd
}

// cleanup reports what it removed. If nothing was pinned there, it names the directories that hold Beeline's
// objects.
func cleanup(out io.Writer, pins, socket string) error {
	if err := checkCapabilities(); err != nil {
		return err
	}
	found := datapath.HasPins(pins)
	notes, err := agent.Cleanup(pins, socket, agent.Components())
	for _, note := range notes {
		fmt.Fprintln(out, note)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, cleanedText(found, pins, datapath.AgentDirectories()))
	return err
}

// cleanedText says what cleanup has removed. others are the directories that still hold objects of an agent.
func cleanedText(found bool, pins string, others []string) string {
	switch {
	case found:
		return fmt.Sprintf("nothing of Beeline is left under %s", pins)
	case len(others) > 0:
		return fmt.Sprintf("nothing of Beeline was under %s, so nothing has been detached; it is under %s: select it with --pins", pins, strings.Join(others, ", "))
	}
	return fmt.Sprintf("nothing of Beeline was under %s, nor on any other BPF file system mounted here", pins)
}
