// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"beeline.io/beeline/internal/node/netns"
)

// A Target is what programs are attached to by links.
type Target interface {
	// has reports whether a link is attached to it.
	has(*link.Info) bool
	// attach makes a link.
	attach(*ebpf.Program, ebpf.AttachType) (link.Link, error)
}

// CgroupTarget is a cgroup: the agent's, or a pod's.
type CgroupTarget struct {
	Directory string
	ID        uint64 // the inode of the directory
}

// NewCgroupTarget returns the cgroup with a directory.
func NewCgroupTarget(directory string) (CgroupTarget, error) {
	id, err := cgroupID(directory)
	return CgroupTarget{directory, id}, err
}

func (t CgroupTarget) has(info *link.Info) bool {
	i := info.Cgroup()
	return i != nil && i.CgroupId == t.ID
}

func (t CgroupTarget) attach(program *ebpf.Program, at ebpf.AttachType) (link.Link, error) {
	return link.AttachCgroup(link.CgroupOptions{Path: t.Directory, Attach: at, Program: program})
}

// NamespaceTarget is the network namespace of a pod.
type NamespaceTarget struct{ *netns.Namespace }

func (t NamespaceTarget) has(info *link.Info) bool {
	i := info.NetNs()
	return i != nil && uint64(i.NetnsInode) == t.Inode
}

func (t NamespaceTarget) attach(program *ebpf.Program, _ ebpf.AttachType) (link.Link, error) {
	return link.AttachNetNs(t.FD(), program)
}

// DeviceTarget is a device.
type DeviceTarget struct {
	Index     int
	Namespace *netns.Namespace    // nil: that of the calling thread
	Anchor    link.Anchor         // the place among the programs of tcx; nil: the last
	XDP       link.XDPAttachFlags // the mode of XDP; 0: the kernel's choice
}

// LoopbackIndex is the index of the device lo in each network namespace (LOOPBACK_IFINDEX).
const LoopbackIndex = 1

// has is true for a netkit device with any index: the link has that of the other end, in its namespace. A link to a
// device that is gone is attached to none.
func (t DeviceTarget) has(info *link.Info) bool {
	if i := info.TCX(); i != nil {
		return int(i.Ifindex) == t.Index
	}
	if i := info.XDP(); i != nil {
		return int(i.Ifindex) == t.Index
	}
	i := info.Netkit()
	return i != nil && i.Ifindex != 0
}

func (t DeviceTarget) attach(program *ebpf.Program, at ebpf.AttachType) (l link.Link, err error) {
	if n := t.Namespace; n != nil {
		t.Namespace = nil
		err = n.Do(func() error {
			l, err = t.attach(program, at)
			return err
		})
		return l, err
	}
	switch at {
	case ebpf.AttachXDP:
		return link.AttachXDP(link.XDPOptions{Program: program, Interface: t.Index, Flags: t.XDP})
	case ebpf.AttachNetkitPeer:
		return link.AttachNetkit(link.NetkitOptions{Interface: t.Index, Program: program, Attach: at})
	}
	return link.AttachTCX(link.TCXOptions{Interface: t.Index, Program: program, Attach: at, Anchor: t.Anchor})
}

// isAttached reports whether the cgroup, device or network namespace of a link exists, and the link is attached to
// it. Tracepoints always exist.
func isAttached(info *link.Info) bool {
	if i := info.Cgroup(); i != nil {
		return i.CgroupId != 0
	}
	if i := info.NetNs(); i != nil {
		return i.NetnsInode != 0
	}
	if i := info.TCX(); i != nil {
		return i.Ifindex != 0
	}
	if i := info.XDP(); i != nil {
		return i.Ifindex != 0
	}
	if i := info.Netkit(); i != nil {
		return i.Ifindex != 0
	}
	return info.RawTracepoint() != nil
}
