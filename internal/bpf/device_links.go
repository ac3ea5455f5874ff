// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// A DeviceHook is a program and its attach point at a device. It is attached by a link: tcx (Linux 6.6), XDP or netkit
// (Linux 6.7); or, at tc of an earlier kernel, as a filter.
type DeviceHook struct {
	Name    string // suffix of the name of its pinned link
	Program string
	Attach  ebpf.AttachType // AttachTCXIngress, AttachTCXEgress, AttachXDP or AttachNetkitPeer
	// Before is a component whose program at the same place runs after this one, if it is there; empty: this one is
	// attached last. Only tcx has an order.
	Before string
	// ProgramAt returns another program for a device, by its index; empty: Program. Nil: the same for all.
	ProgramAt func(device int) string
}

// ProgramFor returns the name of the program for a device.
func (h *DeviceHook) ProgramFor(device int) string {
	if h.ProgramAt != nil {
		if name := h.ProgramAt(device); name != "" {
			return name
		}
	}
	return h.Program
}

func hookNames(hooks []DeviceHook) (names []string) {
	for _, h := range hooks {
		names = append(names, h.Name)
	}
	return names
}

// deviceLinks lists the pinned links of a component's hooks, in the order of devices and of attachment.
func (c *Component) deviceLinks(bpffs string) (all []Link, err error) {
	links, err := PinnedLinks(bpffs, c.Name)
	for _, l := range links {
		if c.Hook(l.Hook) == nil {
			continue
		}
		l.Detached = !DeviceTarget{Index: l.Device()}.has(l.info)
		all = append(all, l)
	}
	c.sortLinks(all)
	return all, err
}

// Device returns the index of the device of a link of a DeviceHook.
func (l *Link) Device() int { return int(l.Owner) }

// Hook returns a DeviceHook by its name, nil if there is none.
func (c *Component) Hook(name string) *DeviceHook {
	for i := range c.DeviceHooks {
		if c.DeviceHooks[i].Name == name {
			return &c.DeviceHooks[i]
		}
	}
	return nil
}

// sortLinks sorts by device, and by the order of attachment.
func (c *Component) sortLinks(all []Link) {
	hooks := hookNames(c.DeviceHooks)
	slices.SortFunc(all, func(a, b Link) int {
		return cmp.Or(cmp.Compare(a.Owner, b.Owner), cmp.Compare(slices.Index(hooks, a.Hook), slices.Index(hooks, b.Hook)))
	})
}

// DeviceAttachments lists the links and filters of the component's hooks, in the order of devices and of attachment.
func (c *Component) DeviceAttachments(bpffs string) ([]Link, error) {
	if len(c.DeviceHooks) == 0 {
		return nil, nil
	}
	all, err := c.deviceLinks(bpffs)
	if err != nil {
		return nil, err
	}
	found, err := c.filters(bpffs)
	if err != nil {
		return nil, err
	}
	for _, f := range found {
		if i := slices.IndexFunc(c.DeviceHooks, func(h DeviceHook) bool { return h.Attach == f.at }); i >= 0 {
			all = append(all, Link{Owner: uint64(f.LinkIndex), Hook: c.DeviceHooks[i].Name, Program: ebpf.ProgramID(f.Id), filter: f.BpfFilter})
		}
	}
	c.sortLinks(all)
	return all, nil
}

// Enabled reports whether a component is enabled.
func (d *Datapath) Enabled(component string) bool {
	_, err := d.enabled.component(component)
	return err == nil
}

// SetDevices attaches the DeviceHooks of a component to devices, by index, and detaches them from all others. From
// then on Repair restores them. The component must be enabled.
func (d *Datapath) SetDevices(component string, devices ...int) error {
	c, err := d.enabled.component(component)
	if err != nil {
		return err
	}
	// Repair would report what is not attached yet.
	d.noteDevices(component, slices.DeleteFunc(slices.Clone(devices), func(device int) bool {
		return !slices.Contains(d.devicesOf(component), device)
	}))
	links, err := c.DeviceAttachments(d.options.BPFFS)
	if err != nil {
		return err
	}
	for _, device := range devices {
		if d.isAttached(c, links, device) {
			continue
		}
		if err := d.attachToDevice(c, device); err != nil {
			return err
		}
	}
	if err := RemoveLinks(slices.DeleteFunc(links, func(l Link) bool { return slices.Contains(devices, l.Device()) })); err != nil {
		return err
	}
	d.noteDevices(component, devices)
	return nil
}

// noteDevices has Repair restore a component's programs at devices.
func (d *Datapath) noteDevices(component string, devices []int) {
	d.loading.Lock()
	defer d.loading.Unlock()
	d.atDevices[component] = slices.Clone(devices)
}

// devicesOf are the devices of noteDevices.
func (d *Datapath) devicesOf(component string) []int {
	d.loading.Lock()
	defer d.loading.Unlock()
	return slices.Clone(d.atDevices[component])
}

// isAttached reports whether this agent's programs of a component are at a device.
func (d *Datapath) isAttached(c *Component, links []Link, device int) bool {
	for _, h := range c.DeviceHooks {
		if !slices.ContainsFunc(links, func(l Link) bool {
			return l.Device() == device && l.Hook == h.Name && !l.Detached && d.isProgram(l.Program, h.ProgramFor(device))
		}) {
			return false
		}
	}
	return true
}

// isProgram reports whether a program of this agent has an id.
func (d *Datapath) isProgram(id ebpf.ProgramID, name string) bool {
	program := d.Program(name)
	if program == nil {
		return false
	}
	info, err := program.Info()
	if err != nil {
		return false
	}
	own, ok := info.ID()
	return ok && own == id
}

// loadedProgram returns a program of a component, and first loads it if it is loaded late. During a migration others
// are at devices.
func (d *Datapath) loadedProgram(c *Component, name string) (*ebpf.Program, error) {
	if p := d.follower.programs[name]; p != nil {
		return p, nil
	}
	if p := d.Program(name); p != nil {
		return p, nil
	}
	objects, err := c.lateObjects(d, name)
	if err != nil {
		return nil, err
	}
	err = d.LoadPrograms(objects...)
	return d.Program(name), err
}

// attachToDevice attaches all hooks of a component to a device, or replaces the programs there.
func (d *Datapath) attachToDevice(c *Component, device int) error {
	for _, h := range c.DeviceHooks {
		if err := d.AttachHook(c, &h, DeviceTarget{Index: device}); err != nil {
			return fmt.Errorf("attach %s of component %s to device %d: %w", h.Name, c.Name, device, err)
		}
	}
	return nil
}

// AttachHook attaches a program to a device, or replaces the one there.
func (d *Datapath) AttachHook(c *Component, h *DeviceHook, to DeviceTarget) error {
	program, err := d.loadedProgram(c, h.ProgramFor(to.Index))
	if err != nil {
		return err
	}
	to.Anchor = d.anchor(h, to.Index)
	err = d.AttachLink(c.Name, uint64(to.Index), h.Name, program, to, h.Attach)
	if errors.Is(err, ebpf.ErrNotSupported) && filterParents[h.Attach] != 0 {
		return c.AttachFilter(d.options.BPFFS, to.Index, h.Attach, program)
	}
	return err
}

// anchor returns the place of a hook's program before that of the component that it precedes; nil: the end of the list.
func (d *Datapath) anchor(h *DeviceHook, device int) link.Anchor {
	if h.Before == "" {
		return nil
	}
	l, err := readLink(ownedLinkPath(d.options.BPFFS, h.Before, uint64(device), h.Name))
	if err != nil || !(DeviceTarget{Index: device}).has(l) {
		return nil
	}
	return link.BeforeLinkByID(l.ID)
}

// replaceAtDevices replaces the programs of an earlier agent at devices. It removes links to devices that
// are gone.
func (d *Datapath) replaceAtDevices(c *Component) error {
	links, err := c.DeviceAttachments(d.options.BPFFS)
	if err != nil {
		return err
	}
	for _, l := range links {
		if err := d.replaceLink(c, &l); err != nil {
			return fmt.Errorf("replace %s of device %d: %w", l.Hook, l.Device(), err)
		}
	}
	if c.Replace == nil {
		return nil
	}
	return c.Replace(d)
}

func (d *Datapath) replaceLink(c *Component, l *Link) error {
	if l.Detached {
		return l.Remove()
	}
	h := c.Hook(l.Hook)
	if l.filter == nil {
		return d.AttachHook(c, h, DeviceTarget{Index: l.Device()})
	}
	program, err := d.loadedProgram(c, h.ProgramFor(l.Device()))
	if err != nil {
		return err
	}
	return c.AttachFilter(d.options.BPFFS, l.Device(), h.Attach, program)
}

// repairDevices attaches what was detached from the devices of SetDevices. It skips devices that are gone.
func (d *Datapath) repairDevices() (repaired []string, err error) {
	for _, c := range d.enabled {
		devices := d.devicesOf(c.Name)
		if len(devices) == 0 {
			continue
		}
		links, err := c.DeviceAttachments(d.options.BPFFS)
		if err != nil {
			return repaired, err
		}
		for _, device := range devices {
			if _, err := net.InterfaceByIndex(device); err != nil {
				continue
			}
			lost := slices.DeleteFunc(hookNames(c.DeviceHooks), func(hook string) bool {
				return slices.ContainsFunc(links, func(l Link) bool { return l.Device() == device && l.Hook == hook && !l.Detached })
			})
			if len(lost) == 0 {
				continue
			}
			if err := d.attachToDevice(c, device); err != nil {
				return repaired, err
			}
			repaired = append(repaired, fmt.Sprintf("%s of component %s at device %d", strings.Join(lost, ", "), c.Name, device))
		}
	}
	return repaired, nil
}

// detachFromDevices detaches the component's programs from all devices.
func (c *Component) detachFromDevices(bpffs string) error {
	links, err := c.DeviceAttachments(bpffs)
	if err != nil {
		return err
	}
	return RemoveLinks(links)
}

// RemoveLinks detaches programs from devices, in reverse order of attachment.
func RemoveLinks(links []Link) error {
	for _, l := range slices.Backward(links) {
		if err := l.Remove(); err != nil {
			return fmt.Errorf("detach %s from device %d: %w", l.Hook, l.Device(), err)
		}
	}
	return nil
}

// Devices returns the indexes of the devices at which all programs of a component are attached.
func (d *Datapath) Devices(component string) (all []int, err error) {
	c, err := d.enabled.component(component)
	if err != nil {
		return nil, err
	}
	links, err := c.DeviceAttachments(d.options.BPFFS)
	if err != nil {
		return nil, err
	}
	count := map[int]int{}
	for _, l := range links {
		if !l.Detached {
			count[l.Device()]++
		}
		if count[l.Device()] == len(c.DeviceHooks) {
			all = append(all, l.Device())
		}
	}
	return all, nil
}
