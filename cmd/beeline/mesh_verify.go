// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"

	"github.com/spf13/cobra"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/shortcut/mesh"
	"beeline.io/beeline/internal/util/printable"
)

func newMeshVerifyCommand() *cobra.Command {
	var socket, to string
	var v view
	o := mesh.VerifyOptions{Program: "/proc/self/exe"}
	cmd := &cobra.Command{
		Use: "verify POD", Short: "Prove by real connections which way traffic of a pod takes",
		Long: `Connects three times, and asks the kernel where each connection went: from a process in the
pod's cgroup and network namespace, as an application and as the proxy, and from this host
to a port of the pod. POD is NAMESPACE/NAME, or the pod's cgroup; a NAME, or one directory
on the way to the cgroup, is enough if no other pod has it. The name of a pod of
--mesh-cgroups is known if the cgroup is the kubelet's, and the agent has the Pod.
Applications and the proxy see connections that are closed without data. Exit code 1 if an
application's connection bypasses the proxy, if the proxy's own is redirected, or if one is
refused.`,
		Args: usage(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if to != "" {
				if o.Outbound, err = netip.ParseAddrPort(to); err != nil {
					return exitError{exitUsage, fmt.Errorf("--to %q: not address:port such as 10.0.0.1:8080 or [fd00::1]:8080", to)}
				}
			}
			s, err := meshStatus(cmd, socket)
			if err != nil {
				return err
			}
			pod, err := s.Find(args[0])
			if err != nil {
				return err
			}
			findings, err := mesh.Verify(cmd.Context(), s, pod, o)
			if e := write(cmd.OutOrStdout(), v.output, findings, func(w io.Writer) { findingTable(w, findings) }); e != nil || err != nil {
				return errors.Join(err, e)
			}
			return wrongWays(findings)
		},
	}
	cmd.Flags().StringVar(&socket, socketFlag, api.DefaultSocket, "unix socket of the agent")
	cmd.Flags().StringVar(&to, "to", "", "address:port to which the application and the proxy connect (default: an address that nobody has)")
	cmd.Flags().Uint16Var(&o.InboundPort, "port", 0, "port of the pod to which this host connects (default: the lowest at which an application listens)")
	v.addFlags(cmd)
	return cmd
}

func findingTable(w io.Writer, all []mesh.Finding) {
	t := newTable(w, true, "CONNECTION", "TO", "WAY", "PROOF")
	for _, f := range all {
		t.row([]string{f.Connection, f.To.String(), f.Way, printable.Line(f.Proof)})
	}
	t.Flush()
}

// wrongWays returns an error if a connection went where it should not.
func wrongWays(all []mesh.Finding) error {
	if i := slices.IndexFunc(all, func(f mesh.Finding) bool { return f.Wrong }); i >= 0 {
		return fmt.Errorf("the connection %s to %s went another way than it should: %s", all[i].Connection, all[i].To, all[i].Way)
	}
	return nil
}

// newMeshConnectCommand is run by mesh.Verify in a pod.
func newMeshConnectCommand() *cobra.Command {
	return &cobra.Command{
		Use: "connect ADDRESS:PORT", Hidden: true, Args: usage(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			to, err := netip.ParseAddrPort(args[0])
			if err != nil {
				return exitError{exitUsage, err}
			}
			report, err := mesh.ReportConnect(to)
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(report)
			return err
		},
	}
}
