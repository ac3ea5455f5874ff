// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"beeline.io/beeline/internal/agent"
	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/shortcut/mesh"
	"beeline.io/beeline/internal/util/printable"
)

func newMeshCommand() *cobra.Command {
	return commandGroup("mesh", "Show pods with a proxy, prove which way their connections take, list connections on rings, install the host stack",
		newMeshStatusCommand(), newMeshVerifyCommand(), newMeshSessionsCommand(), newMeshConnectCommand(), newMeshInstallLibraryCommand())
}

// meshStatus asks the agent.
func meshStatus(cmd *cobra.Command, socket string) (*api.MeshStatus, error) {
	var s api.MeshStatus
	return &s, question{socket: socket, enable: "set --mesh-pods or --mesh-cgroups of the agent"}.get(cmd.Context(), api.MeshPath, &s)
}

func newMeshStatusCommand() *cobra.Command {
	var socket string
	var v view
	cmd := &cobra.Command{
		Use: "status", Short: "List the pods with a proxy, and those that are left alone",
		Long: `Lists the pods whose connections go to a proxy in the pod, and those that --mesh-pods
selects and that are left alone, with the reason. LISTENERS are the proxy's sockets for
connections from other hosts. -o wide adds the cgroup.`,
		Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return v.show(cmd, func() (any, func(io.Writer), error) {
				s, err := meshStatus(cmd, socket)
				if err != nil {
					return nil, nil, err
				}
				s.Pods = slices.DeleteFunc(s.Pods, func(p api.MeshPod) bool { return !v.of(p.Name) })
				s.LeftAlone = slices.DeleteFunc(s.LeftAlone, func(l api.MeshLeft) bool { return !v.of(l.Name) })
				v.nothing(cmd, len(s.Pods)+len(s.LeftAlone), "pods with a proxy")
				return s, func(w io.Writer) { meshTable(w, s, &v) }, nil
			})
		},
	}
	cmd.Flags().StringVar(&socket, socketFlag, agent.DefaultSocket, "unix socket of the agent")
	v.addListFlags(cmd)
	return cmd
}

// meshTable prints pods; -o wide adds their cgroup.
func meshTable(w io.Writer, s *api.MeshStatus, v *view) {
	columns := []string{"POD", "STATE", "LISTENERS", "PROXY"}
	wide := v.output == "wide"
	if wide {
		columns = append(columns, "CGROUP")
	}
	t := newTable(w, !v.noHeaders, columns...)
	for _, p := range s.Pods {
		row := []string{p.Label(), meshState(&p), strconv.Itoa(p.ProxyListeners), p.Proxy.String()}
		if wide {
			row = append(row, p.CgroupDirectory)
		}
		t.row(row)
	}
	for _, l := range s.LeftAlone {
		t.row([]string{l.Name, "left alone: " + printable.Line(l.Why), "-", "-"})
	}
	t.Flush()
}

func meshState(p *api.MeshPod) string {
	switch {
	case p.Error != "":
		return printable.Line(p.Error)
	case p.NetNSCookie == 0:
		return "no process yet"
	case !p.Proxy.Known():
		return "refused: nothing tells the proxy from applications"
	case p.Native:
		return "served, native sidecar"
	}
	return "served"
}

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
	cmd.Flags().StringVar(&socket, socketFlag, agent.DefaultSocket, "unix socket of the agent")
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
