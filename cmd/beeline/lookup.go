// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/offline"
	"beeline.io/beeline/internal/report/assess"
)

// Flags that select an agent. They mean the same in all commands.
const (
	socketFlag = "agent-socket"
	pinsFlag   = "pins"
)

// addPinsFlags adds the flags of commands that read pins alone, whether an agent runs or not.
func addPinsFlags(cmd *cobra.Command, pins *string) {
	var socket string
	cmd.Flags().StringVar(pins, pinsFlag, api.DefaultBPFFS, "directory of the agent's pinned objects")
	cmd.Flags().StringVar(&socket, socketFlag, api.DefaultSocket, "unix socket of the agent whose pinned objects are read; it is not asked")
	exclusive(cmd, socketFlag, pinsFlag)
	beforeRun(cmd, func() error {
		if !cmd.Flags().Changed(socketFlag) {
			return nil
		}
		if *pins = api.PinsOf(socket); *pins == "" {
			return exitError{exitUsage, fmt.Errorf("no agent has listened on %s: give its socket, or its pins with --%s", socket, pinsFlag)}
		}
		return nil
	})
}

// lookup reads from the agent or, with --pins, from the pinned tables.
type lookup struct {
	socket   string
	pins     string
	fromPins bool
	view
}

// addFlags adds the flags of commands that print one object.
func (l *lookup) addFlags(cmd *cobra.Command) {
	l.addSourceFlags(cmd)
	l.view.addFlags(cmd)
}

func (l *lookup) addSourceFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&l.socket, socketFlag, api.DefaultSocket, "unix socket of the agent")
	cmd.Flags().StringVar(&l.pins, pinsFlag, api.DefaultBPFFS, "read the tables pinned in this directory instead of asking the agent")
	exclusive(cmd, socketFlag, pinsFlag)
	beforeRun(cmd, func() error {
		l.fromPins = cmd.Flags().Changed(pinsFlag)
		return nil
	})
}

func (l *lookup) tables(ctx context.Context) (*api.Tables, error) {
	return l.read(ctx, api.TablesPath, offline.Scope{})
}

// read returns the part of the tables that scope selects; path is its path on the agent's socket.
func (l *lookup) read(ctx context.Context, path string, scope offline.Scope) (*api.Tables, error) {
	if l.fromPins {
		tables, err := bpf.OpenTables(l.pins)
		if err != nil {
			return nil, err
		}
		read, err := offline.ReadScope(ctx, tables, scope)
		if err == nil {
			read.OutsideServed = bpf.HasEdge(l.pins)
		}
		if err == nil && (scope.Service != "" || scope.Owners) {
			err = offline.AddDraining(read, l.pins, scope)
		}
		if err == nil && scope.Service != "" {
			err = addConnections(read, tables, l.pins)
		}
		return read, err
	}
	var tables api.Tables
	return &tables, l.ask(ctx, path, &tables)
}

// status asks the agent. The pins say what is known of an agent that does not answer.
func (l *lookup) status(ctx context.Context) (*api.Status, error) {
	if l.fromPins {
		return pinnedStatus(ctx, l.pins)
	}
	silent := api.NewClient(l.socket).Alive(ctx)
	if silent == nil {
		var status api.Status
		return &status, l.ask(ctx, api.StatusPath, &status)
	}
	pins := api.PinsOf(l.socket)
	if pins == "" || errors.Is(silent, api.ErrNotRunning) && !bpf.HasPins(pins) {
		return nil, l.question().explained(silent)
	}
	status, err := pinnedStatus(ctx, pins)
	if err != nil {
		return nil, errors.Join(l.question().explained(silent), err)
	}
	status.NoAnswerReason = fmt.Sprintf("nobody listens on %s", l.socket)
	if errors.Is(silent, api.ErrNoAnswer) {
		status.NoAnswerReason = fmt.Sprintf("no answer on %s for a second", l.socket)
	}
	assess.Status(status)
	return status, nil
}

func pinnedStatus(ctx context.Context, pins string) (*api.Status, error) {
	from := lookup{pins: pins, fromPins: true}
	tables, err := from.read(ctx, "", offline.Scope{Outline: true})
	if err != nil {
		return nil, err
	}
	return offline.ReadStatus(pins, version, tables, components().ReadPins, true), nil
}

func (l *lookup) ask(ctx context.Context, path string, value any) error {
	return l.question().get(ctx, path, value)
}

func (l *lookup) question() question {
	read := fmt.Sprintf("read the pinned tables with --%s %s", pinsFlag, cmp.Or(api.PinsOf(l.socket), api.DefaultBPFFS))
	return question{socket: l.socket, without: read, withoutHung: read}
}
