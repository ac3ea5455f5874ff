// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"beeline.io/beeline/internal/api"
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
	cmd.Flags().StringVar(&socket, socketFlag, api.DefaultSocket, "unix socket of the agent")
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
