// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"beeline.io/beeline/test/lab"
)

// defaultLab is the name of the lab without --name.
const defaultLab = "demo"

// Exit codes of `exec` for commands that did not run, as in a shell.
const (
	exitNotRun   = 126
	exitNotFound = 127
)

func newUpCommand() *cobra.Command {
	var config lab.Config
	var servers bool
	layouts := []string{string(lab.LayoutSystemd), string(lab.LayoutCgroupfs)}
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Create a lab, or complete a partly created one",
		Args:  usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := lab.Up(config)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if l.Reused {
				fmt.Fprintf(out, "lab %s is already up\n", l.Name)
			} else {
				fmt.Fprintf(out, "lab %s is up: %d hosts\n", l.Name, len(l.Hosts()))
			}
			if servers {
				if err := l.StartServers(); err != nil {
					return err
				}
				fmt.Fprintf(out, "servers run in %d pods: TCP %d, HTTP %d, UDP %d\n", len(l.Pods()), lab.PortTCP, lab.PortHTTP, lab.PortUDP)
			}
			return nil
		},
	}
	addLabName(cmd, &config.Name)
	cmd.Flags().BoolVar(&servers, "servers", false, "start a small TCP, HTTP and UDP server in each pod")
	cmd.Flags().StringVar((*string)(&config.CgroupLayout), "cgroup-layout", layouts[0],
		"naming scheme of the pods' cgroups, as of the kubelet's cgroup driver: "+strings.Join(layouts, " or "))
	cmd.Flags().StringVar((*string)(&config.Network), "network", lab.Networks[0], "how pods reach pods on other nodes: "+strings.Join(lab.Networks, " or "))
	cmd.Flags().StringVar((*string)(&config.Pods), "pods", lab.PodLayouts[0], "how pods are connected to their node: "+strings.Join(lab.PodLayouts, ", "))
	cmd.Flags().BoolVar(&config.TwoNICs, "two-nics", false, "give node-a a second device, eth1, with a client behind it, client2")
	cmd.Flags().BoolVar(&config.ThreeNodes, "three-nodes", false, "add a third node, node-c, with three pods")
	cmd.RegisterFlagCompletionFunc("network", cobra.FixedCompletions(lab.Networks, cobra.ShellCompDirectiveNoFileComp))
	cmd.RegisterFlagCompletionFunc("pods", cobra.FixedCompletions(lab.PodLayouts, cobra.ShellCompDirectiveNoFileComp))
	cmd.RegisterFlagCompletionFunc("cgroup-layout", cobra.FixedCompletions(layouts, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func newDownCommand() *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Remove a lab and everything that runs in it; succeeds if there is none",
		Args:  usage(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			return lab.Down(name)
		},
	}
	addLabName(cmd, &name)
	return cmd
}

func newExecCommand() *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "exec HOST -- COMMAND [ARGUMENT...]",
		Short: "Run a command on a host of a lab",
		Long: `Runs a command in the network namespace and cgroup of a host. The exit status is
that of the command, 127 if it is not found and 126 if it cannot be run.`,
		Example: `  beeline-lab exec a1 -- curl -s http://10.10.2.11:8081/
  beeline-lab exec node-a -- bash`,
		Args: usage(cobra.MinimumNArgs(2)),
		RunE: func(_ *cobra.Command, args []string) error {
			l, err := lab.Open(name)
			if err != nil {
				return err
			}
			host := l.Host(args[0])
			if host == nil {
				return exitError{exitUsage, fmt.Errorf("lab %s has no host %q: it has %s", name, args[0], strings.Join(hostNames(l), ", "))}
			}
			argv := args[1:]
			if argv[0] == "--" {
				argv = argv[1:]
			}
			err = host.Exec(argv) // returns only on failure
			if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
				return exitError{exitNotFound, err}
			}
			return exitError{exitNotRun, err}
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			l, err := lab.Open(name)
			if err != nil || len(args) > 0 {
				return nil, cobra.ShellCompDirectiveDefault
			}
			return hostNames(l), cobra.ShellCompDirectiveNoFileComp
		},
	}
	addLabName(cmd, &name)
	// Everything after the host belongs to the command, including options.
	cmd.Flags().SetInterspersed(false)
	return cmd
}

func addLabName(cmd *cobra.Command, name *string) {
	cmd.Flags().StringVar(name, "name", defaultLab, "name of the lab")
	cmd.RegisterFlagCompletionFunc("name", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		var names []string
		labs, _ := lab.List() // no completion without labs
		for _, l := range labs {
			names = append(names, l.Name)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	})
}

func hostNames(l *lab.Lab) []string {
	var names []string
	for _, h := range l.Hosts() {
		names = append(names, h.Name)
	}
	return names
}

// labView is a lab as `list` shows it.
type labView struct {
	Name         string           `json:"name"`
	Complete     bool             `json:"complete"`
	Problem      string           `json:"problem,omitempty"`
	Temporary    bool             `json:"temporary"`
	Created      *time.Time       `json:"created,omitempty"`
	CgroupLayout lab.CgroupLayout `json:"cgroupLayout,omitempty"`
	CgroupRoot   string           `json:"cgroupRoot,omitempty"`
	Hosts        []hostView       `json:"hosts"`
}

type hostView struct {
	Name       string     `json:"name"`
	Role       lab.Role   `json:"role"`
	Node       string     `json:"node,omitempty"`
	IPv4       netip.Addr `json:"ipv4"`
	IPv6       netip.Addr `json:"ipv6"`
	Server     bool       `json:"server"`
	NetNS      string     `json:"netns"`
	Cgroup     string     `json:"cgroup"`
	CgroupRoot string     `json:"cgroupRoot,omitempty"`
	BPFFS      string     `json:"bpffs,omitempty"`
	RunDir     string     `json:"runDir,omitempty"`
}

// outputs lists the values of `list -o`.
var outputs = []string{"table", "json", "yaml"}

func newListCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "Show all labs and their hosts",
		Args:  usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.Contains(outputs, format) {
				return exitError{exitUsage, fmt.Errorf("--output %q: valid formats are %s", format, strings.Join(outputs, ", "))}
			}
			labs, err := lab.List()
			if err != nil {
				return err
			}
			views := []labView{}
			for _, l := range labs {
				views = append(views, viewLab(l))
			}
			return write(cmd.OutOrStdout(), format, views)
		},
	}
	cmd.Flags().StringVarP(&format, "output", "o", outputs[0], "output format: "+strings.Join(outputs, ", "))
	cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(outputs, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func viewLab(s lab.Status) labView {
	view := labView{Name: s.Name, Hosts: []hostView{}}
	if s.Lab == nil {
		view.Problem = s.Err.Error()
		return view
	}
	view.Complete = true
	view.Temporary, view.Created = s.Lab.Temporary, &s.Lab.Created
	view.CgroupLayout, view.CgroupRoot = s.Lab.CgroupLayout, s.Lab.CgroupRoot
	for _, h := range s.Lab.Hosts() {
		host := hostView{
			Name: h.Name, Role: h.Role, IPv4: h.Addr4, IPv6: h.Addr6, Server: h.ServerRunning(),
			NetNS: h.NetNS, Cgroup: h.Cgroup, CgroupRoot: h.CgroupRoot, BPFFS: h.BPFFS, RunDir: h.RunDir,
		}
		if h.Node != nil {
			host.Node = h.Node.Name
		}
		view.Hosts = append(view.Hosts, host)
	}
	return view
}

// write prints labs in one of the output formats.
func write(out io.Writer, format string, labs []labView) (err error) {
	var text []byte
	switch format {
	case "json":
		text, err = json.MarshalIndent(labs, "", "  ")
		text = append(text, '\n')
	case "yaml":
		text, err = yaml.Marshal(labs)
	default:
		printLabs(out, labs)
	}
	if err == nil {
		_, err = out.Write(text)
	}
	return err
}

func printLabs(out io.Writer, labs []labView) {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "LAB\tHOST\tROLE\tNODE\tIPV4\tIPV6\tSERVER")
	for _, l := range labs {
		if !l.Complete {
			fmt.Fprintf(table, "%s\tincomplete\t\t\t\t\t\n", l.Name)
		}
		for _, h := range l.Hosts {
			node, server := "-", "-"
			if h.Node != "" {
				node = h.Node
			}
			if h.Server {
				server = "runs"
			}
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", l.Name, h.Name, h.Role, node, h.IPv4, h.IPv6, server)
		}
	}
	table.Flush()
	for _, l := range labs {
		if !l.Complete {
			fmt.Fprintln(out, l.Problem)
		}
	}
}
