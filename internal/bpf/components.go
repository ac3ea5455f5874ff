// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"fmt"

	"github.com/cilium/ebpf"
)

// OwnComponents returns the components that this package declares, in the order of Options.Components. Those of the
// other shortcuts come after them.
func OwnComponents() componentList {
	return componentList{Socket(), Edge(), SocketStats()}
}

// Socket is the socket shortcut, which is always enabled. All objects share its tables.
func Socket() *Component {
	return &Component{
		Name: "socket", Objects: (*Datapath).socketObjects, Tables: socketTables, Constants: socketConstants, CgroupHooks: socketHooks,
	}
}

// Edge is the edge, enabled by Options.Edge.
func Edge() *Component {
	return &Component{
		Name: edgeName, Objects: (*Datapath).edgeObjects, Tables: edgeTables, Constants: edgeConstants,
		DeviceHooks: edgeHooks, LateObject: lateEdgeObject, FilterPriority: edgeFilterPriority,
		Conntrack: func(d *Datapath) bool { return d.options.Edge != nil }, // also of the pod shortcut, which needs the edge
		Attached:  attachedInDispatchers, Replace: (*Datapath).replaceInDispatchers, Detach: leaveDispatchers,
	}
}

// SocketStatsComponent is the name of the statistics of connections at sockets.
const SocketStatsComponent = "socket_stats"

// SocketStats is the statistics of connections at sockets, enabled by Options.SocketStats.
func SocketStats() *Component {
	return &Component{
		Name: SocketStatsComponent, Objects: (*Datapath).socketStatsObjects, Tables: socketStatsTables, Constants: socketStatsConstants,
		CgroupHooks: []CgroupHook{{"sock_stats", SockStatsProgBeelineSockStats, ebpf.AttachCGroupSockOps, nil}},
	}
}

// socketObjects returns the socket shortcut's objects, with bind protection if that is enabled.
func (d *Datapath) socketObjects() ([]*ebpf.CollectionSpec, error) {
	sock, err := LoadSock()
	if err != nil {
		return nil, err
	}
	if !d.canProtectBind() {
		return []*ebpf.CollectionSpec{sock}, nil
	}
	bind, err := LoadBind()
	return []*ebpf.CollectionSpec{sock, bind}, err
}

// BindProtection is the part of the socket shortcut that refuses a bind() of served ports.
const BindProtection = "bind_protection"

// canProtectBind reports whether bind() of served ports can be refused, if the options enable that. It
// needs the kernel's BTF.
func (d *Datapath) canProtectBind() bool {
	if d.options.BindProtection && !kernelHas()[kernelTypes] {
		d.options.BindProtection = false
		d.Unavailable[BindProtection] = "bind() of NodePorts and HostPorts is not refused, because this kernel has no BTF (CONFIG_DEBUG_INFO_BTF): " +
			"use another kernel, or --bind-protection=false if that is acceptable"
	}
	return d.options.BindProtection
}

// socketStatsObjects returns the object of the statistics. It needs the kernel's BTF.
func (d *Datapath) socketStatsObjects() ([]*ebpf.CollectionSpec, error) {
	if d.options.SocketStats == nil {
		return nil, nil
	}
	if !kernelHas()[kernelTypes] {
		return nil, Unavailable("connections at sockets are not counted, because this kernel has no BTF (CONFIG_DEBUG_INFO_BTF): " +
			"use another kernel, or --socket-stats=false if that is acceptable")
	}
	stats, err := LoadSockStats()
	return []*ebpf.CollectionSpec{stats}, err
}

// edgeObjects returns the edge's objects: tc first, which has all of its tables.
func (d *Datapath) edgeObjects() ([]*ebpf.CollectionSpec, error) {
	if d.options.Edge == nil {
		return nil, nil
	}
	tc, err := LoadEdgeTC()
	if err != nil || d.options.Edge.LateXDP {
		return []*ebpf.CollectionSpec{tc}, err
	}
	xdp, err := LoadEdgeXDP()
	return []*ebpf.CollectionSpec{tc, xdp}, err
}

// attachedPrograms finds a component's programs in the kernel.
func (c *Component) attachedPrograms(bpffs string) ([]AttachedProgram, error) {
	all, err := attachedToCgroup(bpffs, c.CgroupHooks)
	if err != nil {
		return nil, err
	}
	links, err := c.deviceAttachments(bpffs)
	for _, l := range links {
		all = append(all, AttachedProgram{l.Program, fmt.Sprintf("%s of device %d", l.Hook, l.Device())})
	}
	if err != nil || c.Attached == nil {
		return all, err
	}
	more, err := c.Attached(bpffs)
	return append(all, more...), err
}

// attachedToCgroup finds the programs of the pinned links of hooks.
func attachedToCgroup(bpffs string, hooks []CgroupHook) (all []AttachedProgram, err error) {
	attached, err := cgroupAttachments(bpffs, hooks)
	for _, a := range attached {
		all = append(all, AttachedProgram{ebpf.ProgramID(a.ProgramID), a.Hook})
	}
	return all, err
}
