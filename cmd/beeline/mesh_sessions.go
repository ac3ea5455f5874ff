// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/shortcut/mesh/hoststack"
	"beeline.io/beeline/internal/util/plural"
	"beeline.io/beeline/internal/util/printable"
)

func newMeshSessionsCommand() *cobra.Command {
	var socket string
	var pids []int
	var all bool
	var v view
	cmd := &cobra.Command{
		Use: "sessions", Short: "List programs with the host stack's library, and their connections on rings",
		Long: `Lists the programs that have the host stack's library, what they have counted, and their
connections on rings. Programs whose environment has the library in LD_PRELOAD, but that
did not load it, are listed with the reason. The agent looks at the pods with a proxy, if
--mesh-hoststack is on or off. With --all-processes or --pid this command looks itself, at
any process. Programs without a connection that may use rings are listed with -o wide.`,
		Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return v.show(cmd, func() (any, func(io.Writer), error) {
				r, err := sessionsReport(cmd, socket, pids, all)
				if err != nil {
					return nil, nil, err
				}
				r.Programs = slices.DeleteFunc(r.Programs, func(p hoststack.Program) bool { return !v.of(p.Pod) })
				v.nothing(cmd, len(r.Programs), "programs with the host stack")
				return r, func(w io.Writer) { sessionTables(w, r, !v.noHeaders, v.output == "wide" || len(pids) > 0) }, nil
			})
		},
	}
	cmd.Flags().StringVar(&socket, socketFlag, api.DefaultSocket, "unix socket of the agent")
	cmd.Flags().IntSliceVar(&pids, "pid", nil, "look at these processes, without the agent")
	cmd.Flags().BoolVar(&all, "all-processes", false, "look at all processes of this host, without the agent")
	exclusive(cmd, "pid", "all-processes")
	exclusive(cmd, "pid", socketFlag)
	exclusive(cmd, "all-processes", socketFlag)
	v.addListFlags(cmd)
	return cmd
}

// sessionsReport asks the agent, or looks itself.
func sessionsReport(cmd *cobra.Command, socket string, pids []int, all bool) (*hoststack.Report, error) {
	if len(pids) == 0 && !all {
		var r hoststack.Report
		const without = "look without the agent by --all-processes or --pid"
		q := question{socket: socket, without: without, withoutHung: without, enable: "set --mesh-hoststack of the agent to on or off, or " + without}
		return &r, q.get(cmd.Context(), api.MeshSessionsPath, &r)
	}
	processes, err := hoststack.All()
	if err != nil {
		return nil, err
	}
	if !all {
		known := processes
		processes = nil
		for _, pid := range pids {
			if !slices.Contains(known, hoststack.Process{PID: pid}) {
				return nil, fmt.Errorf("--pid %d: there is no such process", pid)
			}
			processes = append(processes, hoststack.Process{PID: pid})
		}
	}
	return hoststack.Look(processes, hoststack.Options{Causes: true})
}

// sessionTables prints programs, and then their connections. Without all it counts the programs that merely have the
// library.
func sessionTables(w io.Writer, r *hoststack.Report, headers, all bool) {
	t := newTable(w, headers, "PID", "PROGRAM", "POD", "STATE", "CONNECTIONS", "ATTACHED", "RECEIVED", "SENT", "REFUSED")
	idle := 0
	for i := range r.Programs {
		p := &r.Programs[i]
		if !all && hasNoConnection(p) {
			idle++
			continue
		}
		t.row(programRow(p))
	}
	t.Flush()
	if idle > 0 {
		fmt.Fprintf(w, "\n%s not listed, which had no connection that may use rings: see -o wide\n", plural.Of(idle, "program"))
	}
	if r.Sessions() > 0 {
		fmt.Fprintln(w)
		t = newTable(w, headers, "PID", "ROLE", "SERVER", "CLIENT", "SENDS BY", "RECEIVES BY")
		for _, p := range r.Programs {
			for _, s := range p.Sessions {
				t.row([]string{strconv.Itoa(s.PID), s.Role, s.Server.String(), s.Client.String(), s.SendsBy, s.ReceivesBy})
			}
		}
		t.Flush()
	}
	if r.Truncated != "" {
		fmt.Fprintf(w, "\nNot complete: %s\n", r.Truncated)
	}
}

// hasNoConnection reports whether a program, such as a shell, merely has the library, and nothing is to be said of it.
func hasNoConnection(p *hoststack.Program) bool {
	return p.State == hoststack.Idle && p.Why == "" && !p.IOUring
}

func programRow(p *hoststack.Program) []string {
	state := string(p.State)
	if p.Why != "" {
		state += ": " + p.Why
	}
	if p.IOUring {
		state += "; has an io_uring, which misses the rings"
	}
	pid := strconv.Itoa(p.PIDs[0])
	if n := len(p.PIDs) - 1; n > 0 {
		pid += fmt.Sprintf(" and %d more", n)
	}
	row := []string{pid, printable.Line(p.Name), cmp.Or(p.Pod, "-"), printable.Line(state), "-", "-", "-", "-", refused(p.Counters)}
	if c := p.Counters; c != nil {
		copy(row[4:], []string{strconv.Itoa(len(p.Sessions)), number(c.Attached), number(c.Received), number(c.Sent)})
	}
	return row
}

func number(n uint64) string { return strconv.FormatUint(n, 10) }

// refused lists the reasons that occurred.
func refused(c *hoststack.Counters) string {
	var all []string
	if c != nil {
		for reason, n := range c.Refused {
			if n > 0 {
				all = append(all, fmt.Sprintf("%s %d", printable.Line(reason), n))
			}
		}
	}
	slices.Sort(all)
	return cmp.Or(strings.Join(all, ", "), "-")
}
