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
		Long: `Runs the agent of this node in the foreground: reads Services from the API
server or from manifests, follows their changes, and attaches the datapath.
Stopping it leaves everything attached and serving; "beeline cleanup" takes it
away.`,
		Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := config.Complete(cmd.Flags()); err != nil {
				return exitError{exitUsage, err}
			}
			if err := errors.Join(checkCapabilities(), checkFileLimit()); err != nil {
				return err
			}
			return agent.Run(cmd.Context(), config, version, newLogger(config))
		},
	}
	config.AddFlags(cmd.Flags())
	return cmd
}

func newLogger(config agent.Config) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(config.LogLevel)); err != nil {
		level = slog.LevelInfo
	}
	options := &slog.HandlerOptions{Level: level}
	out := printable.NewWriter(os.Stderr) // the handlers let one goroutine write at a time
	if config.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(out, options))
	}
	return slog.New(slog.NewTextHandler(out, options))
}

func newCleanupCommand() *cobra.Command {
	var bpffs, socket string
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Detach everything and leave the node as it was found",
		Long: `Detaches all programs and removes all tables, pins and mounts that an agent made.
Refused while an agent is running. Services are not translated any more
afterwards; connections that were made through them live on.`,
		Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !filepath.IsAbs(bpffs) {
				return exitError{exitUsage, fmt.Errorf("--bpffs %q: not an absolute path", bpffs)}
			}
			return cleanup(cmd.OutOrStdout(), bpffs, socket)
		},
	}
	cmd.Flags().StringVar(&bpffs, "bpffs", agent.DefaultBPFFS, "directory of the agent's pins")
	cmd.Flags().StringVar(&socket, "socket", agent.DefaultSocket, "unix socket that a killed agent may have left")
	return cmd
}

// cleanup says what it has found: one who names a wrong place is told the right ones.
func cleanup(out io.Writer, bpffs, socket string) error {
	if err := checkCapabilities(); err != nil {
		return err
	}
	found := datapath.HasPins(bpffs)
	if err := datapath.Cleanup(bpffs); err != nil {
		return err
	}
	agent.RemoveSocket(socket)
	text := fmt.Sprintf("nothing of Beeline is left under %s", bpffs)
	if others := datapath.Places(); !found && len(others) > 0 {
		text = fmt.Sprintf("nothing of Beeline was under %s, so nothing has been detached; it is under %s: name the one that is meant with --bpffs", bpffs, strings.Join(others, ", "))
	} else if !found {
		text = fmt.Sprintf("nothing of Beeline was under %s, nor is it on another BPF file system that is mounted here", bpffs)
	}
	_, err := fmt.Fprintln(out, text)
	return err
}
