// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"fmt"

	"github.com/cilium/ebpf"
)

// Socket is the socket shortcut, which is always enabled. All objects share its tables.
func Socket() *Component {
	return &Component{
		Name: "socket", Objects: (*Datapath).socketObjects, Tables: socketTables, Constants: socketConstants, CgroupHooks: socketHooks,
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
	if d.options.BindProtection && !kernelHas()[KernelTypes] {
		d.options.BindProtection = false
		d.Unavailable[BindProtection] = "bind() of NodePorts and HostPorts is not refused, because this kernel has no BTF (CONFIG_DEBUG_INFO_BTF): " +
			"use another kernel, or --bind-protection=false if that is acceptable"
	}
	return d.options.BindProtection
}

// attachedPrograms finds a component's programs in the kernel.
func (c *Component) attachedPrograms(bpffs string) ([]AttachedProgram, error) {
	all, err := attachedToCgroup(bpffs, c.CgroupHooks)
	if err != nil {
		return nil, err
	}
	links, err := c.DeviceAttachments(bpffs)
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
