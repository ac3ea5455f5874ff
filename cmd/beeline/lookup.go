// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"beeline.io/beeline/internal/agent"
	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/observe"
)

// lookup is where the commands that show something get it from: the agent, or
// the pinned tables.
type lookup struct {
	socket   string
	bpffs    string
	fromMaps bool
	output   string
}

func (l *lookup) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&l.socket, "socket", agent.DefaultSocket, "unix socket of the agent")
	cmd.Flags().StringVar(&l.bpffs, "bpffs", agent.DefaultBPFFS, "directory of the agent's pins, for --from-maps")
	cmd.Flags().BoolVar(&l.fromMaps, "from-maps", false, "read the pinned tables, and do not ask the agent")
	addOutputFlag(cmd, &l.output)
	cmd.PreRunE = l.check
}

// check refuses a flag that would have no effect.
func (l *lookup) check(cmd *cobra.Command, _ []string) error {
	if l.fromMaps && cmd.Flags().Changed("socket") {
		return exitError{exitUsage, errors.New("--socket has no effect with --from-maps: leave one of them out")}
	}
	if !l.fromMaps && cmd.Flags().Changed("bpffs") {
		return exitError{exitUsage, errors.New("--bpffs has an effect only with --from-maps: add that, or name the agent's --socket")}
	}
	return nil
}

func (l *lookup) tables(ctx context.Context) (*observe.Tables, error) {
	return l.read(ctx, agent.TablesPath, observe.Scope{})
}

// read gets a part of the tables: path is what the agent is asked for it.
func (l *lookup) read(ctx context.Context, path string, scope observe.Scope) (*observe.Tables, error) {
	if l.fromMaps {
		tables, err := datapath.OpenTables(l.bpffs)
		if err != nil {
			return nil, err
		}
		read, err := observe.ReadScope(ctx, tables, scope)
		if err == nil {
			read.OutsideServed = datapath.HasEdge(l.bpffs)
		}
		if err == nil && (scope.Service != "" || scope.Owners) {
			err = read.AddLeaving(l.bpffs, scope)
		}
		return read, err
	}
	var tables observe.Tables
	return &tables, l.ask(ctx, path, &tables)
}

func (l *lookup) status(ctx context.Context) (*observe.Status, error) {
	if l.fromMaps {
		tables, err := l.read(ctx, "", observe.Scope{Outline: true})
		if err != nil {
			return nil, err
		}
		return observe.ReadStatus(l.bpffs, version, tables), nil
	}
	var status observe.Status
	return &status, l.ask(ctx, agent.StatusPath, &status)
}

func (l *lookup) ask(ctx context.Context, path string, value any) error {
	err := agent.NewClient(l.socket).Get(ctx, path, value)
	if errors.Is(err, agent.ErrNotRunning) {
		return fmt.Errorf("no agent answers on %s: name its --socket, or read its tables with --from-maps --bpffs", l.socket)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("the agent on %s does not answer: read its tables with --from-maps --bpffs", l.socket)
	}
	return err
}
