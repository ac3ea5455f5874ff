// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Host is one host of a lab: a network namespace and a cgroup.
type Host struct {
	Name string
	Role Role
	// Addr4 and Addr6 are the host's own addresses. The fabric has one
	// pair per uplink, these are the nodes' gateways.
	Addr4, Addr6 netip.Addr
	// Node is the node of a pod, nil for other hosts.
	Node *Host
	// NetNS is the path of the network namespace, as for nsenter --net=.
	NetNS string
	// Cgroup is the directory of the cgroup2 cgroup of the host's processes; for a node that of its own
	// processes (agent, hostNetwork), next to those of its pods.
	Cgroup string
	// Dir holds the host's files: servers' logs and records.
	Dir string

	// Only for nodes.

	// CgroupRoot holds the cgroups of the node and of its pods; programs attached here see the sockets of
	// this node only.
	CgroupRoot string
	// BPFFS is the node's own BPF file system.
	BPFFS string
	// RunDir is for the agent's sockets and files.
	RunDir string

	lab    *Lab
	helper socketHelper
}

// Pods returns the pods of a node.
func (h *Host) Pods() []*Host {
	var list []*Host
	for _, pod := range h.lab.Pods() {
		if pod.Node == h {
			list = append(list, pod)
		}
	}
	return list
}

// Do runs f on a thread in the host's network namespace. f must stay on its goroutine: those it starts run
// elsewhere. The cgroup is the caller's.
func (h *Host) Do(f func() error) error {
	if err := inNetNS(h.NetNS, f); err != nil {
		return fmt.Errorf("host %s: %w", h.Name, err)
	}
	return nil
}

// Netlink opens a handle for links, addresses and routes of the host, and for nothing else: through it, other
// netlink families work in the caller's own network namespace. Use Do for these. The caller closes it.
func (h *Host) Netlink() (*netlink.Handle, error) {
	nl, err := netlinkAt(h.NetNS)
	if err != nil {
		return nil, fmt.Errorf("host %s: opening netlink: %w", h.Name, err)
	}
	return nl, nil
}

// OpenDevice is Netlink, and one of the host's devices.
func (h *Host) OpenDevice(name string) (*netlink.Handle, netlink.Link, error) {
	nl, err := h.Netlink()
	if err != nil {
		return nil, nil, err
	}
	device, err := nl.LinkByName(name)
	if err != nil {
		nl.Close()
		return nil, nil, fmt.Errorf("host %s: device %s: %w", h.Name, name, err)
	}
	return nl, device, nil
}

// check returns an error if the lab lacks something.
func (l *Lab) check(s state) error {
	if !s.Complete {
		return errors.New("its creation never finished, or is in progress")
	}
	if boot, err := bootID(); err != nil {
		return err
	} else if boot != s.BootID {
		return errors.New("it is from before the last reboot")
	}
	for _, h := range l.hosts {
		if !isNetNS(h.NetNS) {
			return fmt.Errorf("host %s: network namespace %s is missing", h.Name, h.NetNS)
		}
		if _, err := os.Stat(h.Cgroup); err != nil {
			return fmt.Errorf("host %s: cgroup %s is missing", h.Name, h.Cgroup)
		}
		if h.Role == RoleNode && !hasFileSystem(h.BPFFS, unix.BPF_FS_MAGIC) {
			return fmt.Errorf("host %s: BPF file system %s is missing", h.Name, h.BPFFS)
		}
	}
	return nil
}

// Status is one lab in a list.
type Status struct {
	Name string
	// Lab is nil if the lab is not complete; Err then says why.
	Lab *Lab
	Err error
}

// List returns the labs of this machine, complete or not, by name.
func List() ([]Status, error) {
	names, err := labNames()
	if err != nil {
		return nil, err
	}
	var list []Status
	for _, name := range names {
		l, err := Open(name)
		if errors.Is(err, ErrNotFound) {
			continue // taken down in between
		}
		list = append(list, Status{Name: name, Lab: l, Err: err})
	}
	return list, nil
}
