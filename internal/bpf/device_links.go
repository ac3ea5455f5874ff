// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
)

// A DeviceHook is a program and its attach point at a device. It is attached by a link: tcx (Linux 6.6), XDP or netkit
// (Linux 6.7); or, at tc of an earlier kernel, as a filter.
type DeviceHook struct {
	Name    string // suffix of the name of its pinned link
	Program string
	Attach  ebpf.AttachType // AttachTCXIngress, AttachTCXEgress, AttachXDP or AttachNetkitPeer
	// ProgramAt returns another program for a device, by its index; empty: Program. Nil: the same for all.
	ProgramAt func(device int) string
}

// programAt returns the name of the program for a device.
func (h *DeviceHook) programAt(device int) string {
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

// deviceLink is a pinned link to a device, or a filter there.
type deviceLink struct {
	device  int // index
	hook    string
	program ebpf.ProgramID
	link    link.ID
	filter  *netlink.BpfFilter // nil: a link
	// detached: the device is gone, or something detached the program.
	detached bool
}

func deviceLinkPath(bpffs, component string, device int, hook string) string {
	return filepath.Join(bpffs, "links", fmt.Sprintf("%s-%d-%s", component, device, hook))
}

// parseDeviceLink is the inverse of deviceLinkPath.
func parseDeviceLink(path string) (component string, device int, hook string, ok bool) {
	parts := strings.Split(filepath.Base(path), "-")
	if len(parts) != 3 {
		return "", 0, "", false
	}
	device, err := strconv.Atoi(parts[1])
	return parts[0], device, parts[2], err == nil
}

// deviceLinks lists the pinned links of a component's hooks, in the order of devices and of attachment.
func deviceLinks(bpffs, component string, hooks []string) (all []deviceLink, err error) {
	wanted := func(path string) bool {
		_, _, hook, ok := parseDeviceLink(path)
		return ok && slices.Contains(hooks, hook)
	}
	err = readPinnedLinks(bpffs, component, wanted, func(path string, info *link.Info) {
		_, device, hook, _ := parseDeviceLink(path)
		all = append(all, deviceLink{device: device, hook: hook, program: info.Program, link: info.ID, detached: !atDevice(device)(info)})
	})
	if err != nil {
		return nil, err
	}
	sortDeviceLinks(all, hooks)
	return all, nil
}

// sortDeviceLinks sorts by device, and by the order of attachment.
func sortDeviceLinks(all []deviceLink, hooks []string) {
	slices.SortFunc(all, func(a, b deviceLink) int {
		return cmp.Or(cmp.Compare(a.device, b.device), cmp.Compare(slices.Index(hooks, a.hook), slices.Index(hooks, b.hook)))
	})
}

// deviceAttachments lists the links and filters of the component's hooks, in the order of devices and of attachment.
func (c *Component) deviceAttachments(bpffs string) ([]deviceLink, error) {
	if len(c.DeviceHooks) == 0 {
		return nil, nil
	}
	all, err := deviceLinks(bpffs, c.Name, hookNames(c.DeviceHooks))
	if err != nil {
		return nil, err
	}
	found, err := filters(bpffs, c.Name)
	if err != nil {
		return nil, err
	}
	for _, f := range found {
		if i := slices.IndexFunc(c.DeviceHooks, func(h DeviceHook) bool { return h.Attach == f.at }); i >= 0 {
			all = append(all, deviceLink{device: f.LinkIndex, hook: c.DeviceHooks[i].Name, program: ebpf.ProgramID(f.Id), filter: f.BpfFilter})
		}
	}
	sortDeviceLinks(all, hookNames(c.DeviceHooks))
	return all, nil
}

// remove detaches a link or filter.
func (l *deviceLink) remove(bpffs, component string) error {
	if l.filter != nil {
		return removeFilter(l.filter)
	}
	return removeDeviceLink(bpffs, component, l.device, l.hook)
}

// atDevice reports whether a link is attached to a device. If the device is gone the link is attached to
// none.
func atDevice(device int) func(*link.Info) bool {
	return func(info *link.Info) bool {
		if i := info.TCX(); i != nil {
			return int(i.Ifindex) == device
		}
		if i := info.XDP(); i != nil {
			return int(i.Ifindex) == device
		}
		if i := info.Netkit(); i != nil { // the index is that of the other end, in its namespace
			return i.Ifindex != 0
		}
		return false
	}
}

// removeDeviceLink detaches a pinned link, if there is one.
func removeDeviceLink(bpffs, component string, device int, hook string) error {
	l, err := link.LoadPinnedLink(deviceLinkPath(bpffs, component, device, hook), nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return takeDown(l)
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
	links, err := c.deviceAttachments(d.options.BPFFS)
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
	for _, l := range slices.Backward(links) {
		if slices.Contains(devices, l.device) {
			continue
		}
		if err := l.remove(d.options.BPFFS, c.Name); err != nil {
			return fmt.Errorf("detach %s from device %d: %w", l.hook, l.device, err)
		}
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
func (d *Datapath) isAttached(c *Component, links []deviceLink, device int) bool {
	for _, h := range c.DeviceHooks {
		if !slices.ContainsFunc(links, func(l deviceLink) bool {
			return l.device == device && l.hook == h.Name && !l.detached && d.isProgram(l.program, h.programAt(device))
		}) {
			return false
		}
	}
	return true
}

// isProgram reports whether a program of this agent has an id.
func (d *Datapath) isProgram(id ebpf.ProgramID, name string) bool {
	program := d.program(name)
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

// loadedProgram returns a program of a component, and first loads those of a component with LoadLate.
func (d *Datapath) loadedProgram(c *Component, name string) (*ebpf.Program, error) {
	if p := d.program(name); p != nil {
		return p, nil
	}
	objects, err := c.Objects(d)
	if err != nil {
		return nil, err
	}
	err = d.loadPrograms(objects)
	return d.program(name), err
}

// attachToDevice attaches all hooks of a component to a device, or replaces the programs there.
func (d *Datapath) attachToDevice(c *Component, device int) error {
	for _, h := range c.DeviceHooks {
		program, err := d.loadedProgram(c, h.programAt(device))
		if err != nil {
			return fmt.Errorf("load component %s: %w", c.Name, err)
		}
		err = d.attachPinned(deviceLinkPath(d.options.BPFFS, c.Name, device, h.Name), program, atDevice(device), func() (link.Link, error) {
			switch h.Attach {
			case ebpf.AttachXDP:
				return link.AttachXDP(link.XDPOptions{Program: program, Interface: device})
			case ebpf.AttachNetkitPeer:
				return link.AttachNetkit(link.NetkitOptions{Interface: device, Program: program, Attach: h.Attach})
			}
			return link.AttachTCX(link.TCXOptions{Interface: device, Program: program, Attach: h.Attach})
		})
		if errors.Is(err, ebpf.ErrNotSupported) && (h.Attach == ebpf.AttachTCXIngress || h.Attach == ebpf.AttachTCXEgress) {
			err = attachFilter(d.options.BPFFS, c.Name, device, h.Attach, program)
		}
		if err != nil {
			return fmt.Errorf("attach %s of component %s to device %d: %w", h.Name, c.Name, device, err)
		}
	}
	return nil
}

// replaceAtDevices replaces the programs of an earlier agent at devices. It removes links to devices that
// are gone.
func (d *Datapath) replaceAtDevices(c *Component) error {
	if c.replace != nil {
		return c.replace(d)
	}
	links, err := c.deviceAttachments(d.options.BPFFS)
	if err != nil {
		return err
	}
	for _, l := range links {
		if l.detached {
			err = l.remove(d.options.BPFFS, c.Name)
		} else {
			err = d.attachToDevice(c, l.device)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// repairDevices attaches what was detached from the devices of SetDevices. It skips devices that are gone.
func (d *Datapath) repairDevices() (repaired []string, err error) {
	for _, c := range d.enabled {
		devices := d.devicesOf(c.Name)
		if len(devices) == 0 {
			continue
		}
		links, err := c.deviceAttachments(d.options.BPFFS)
		if err != nil {
			return repaired, err
		}
		for _, device := range devices {
			if _, err := net.InterfaceByIndex(device); err != nil {
				continue
			}
			lost := slices.DeleteFunc(hookNames(c.DeviceHooks), func(hook string) bool {
				return slices.ContainsFunc(links, func(l deviceLink) bool { return l.device == device && l.hook == hook && !l.detached })
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
	links, err := c.deviceAttachments(bpffs)
	if err != nil {
		return err
	}
	for _, l := range slices.Backward(links) {
		if err := l.remove(bpffs, c.Name); err != nil {
			return fmt.Errorf("detach %s from device %d: %w", l.hook, l.device, err)
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
	links, err := c.deviceAttachments(d.options.BPFFS)
	if err != nil {
		return nil, err
	}
	count := map[int]int{}
	for _, l := range links {
		if !l.detached {
			count[l.device]++
		}
		if count[l.device] == len(c.DeviceHooks) {
			all = append(all, l.device)
		}
	}
	return all, nil
}
