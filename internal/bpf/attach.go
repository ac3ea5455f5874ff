// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// A CgroupHook is a program and its attach point in a cgroup.
type CgroupHook struct {
	Name    string // of its pins
	Program string
	Attach  ebpf.AttachType
	// Wanted reports whether the options enable the hook; nil: always.
	Wanted func(Options) bool
}

// socketHooks are in the order of attachment: getpeername(2) must know a connection or datagram as soon as
// it has been rewritten.
var socketHooks = []CgroupHook{
	{"getpeername4", SockProgBeelineGetpeername4, ebpf.AttachCgroupInet4GetPeername, nil},
	{"getpeername6", SockProgBeelineGetpeername6, ebpf.AttachCgroupInet6GetPeername, nil},
	{"recvmsg4", SockProgBeelineRecvmsg4, ebpf.AttachCGroupUDP4Recvmsg, nil},
	{"recvmsg6", SockProgBeelineRecvmsg6, ebpf.AttachCGroupUDP6Recvmsg, nil},
	{"post_bind4", BindProgBeelinePostBind4, ebpf.AttachCGroupInet4PostBind, bindProtection},
	{"post_bind6", BindProgBeelinePostBind6, ebpf.AttachCGroupInet6PostBind, bindProtection},
	{"bind4", BindProgBeelineBind4, ebpf.AttachCGroupInet4Bind, bindProtection},
	{"bind6", BindProgBeelineBind6, ebpf.AttachCGroupInet6Bind, bindProtection},
	{"connect4", SockProgBeelineConnect4, ebpf.AttachCGroupInet4Connect, nil},
	{"connect6", SockProgBeelineConnect6, ebpf.AttachCGroupInet6Connect, nil},
	{"sendmsg4", SockProgBeelineSendmsg4, ebpf.AttachCGroupUDP4Sendmsg, nil},
	{"sendmsg6", SockProgBeelineSendmsg6, ebpf.AttachCGroupUDP6Sendmsg, nil},
}

func bindProtection(o Options) bool { return o.BindProtection }

// hooks returns the cgroup hooks of the enabled components that the options enable.
func (d *Datapath) hooks() []CgroupHook {
	return slices.DeleteFunc(d.enabled.cgroupHooks(), func(h CgroupHook) bool { return h.Wanted != nil && !h.Wanted(d.options) })
}

// Hooks returns the number of Attachments when everything is attached.
func (d *Datapath) Hooks() int { return len(d.hooks()) }

func cgroupLinkPath(bpffs string, h CgroupHook) string { return filepath.Join(bpffs, "links", h.Name) }

func programPath(bpffs string, h CgroupHook) string { return filepath.Join(bpffs, "programs", h.Name) }

// Attached reports whether an earlier agent left links in a bpffs directory: then traffic depends on them,
// and Attach replaces their programs without a gap.
func Attached(bpffs string) bool {
	return slices.ContainsFunc(socketHooks, func(h CgroupHook) bool {
		_, err := os.Stat(cgroupLinkPath(bpffs, h))
		return err == nil
	})
}

// Attach attaches the programs, or replaces those of an earlier agent in their links. A link to another
// cgroup than the requested one is detached first, since a connection that passed both would be looked up
// twice.
func (d *Datapath) Attach() error {
	if err := d.refuseForeign(); err != nil {
		return err
	}
	if err := d.attachAll(); err != nil {
		return err
	}
	kernelBTF.Store(nil) // little is loaded later, and seldom
	if err := d.holdLinks(); err != nil {
		return err
	}
	if err := d.swapResized(); err != nil {
		return err
	}
	d.attached.Store(true)
	return nil
}

func (d *Datapath) attachAll() error {
	if d.old != nil {
		if err := d.migrate(); err != nil {
			return fmt.Errorf("migrate the tables of the earlier agent: %w", err)
		}
		return nil
	}
	if err := d.attachHooks(); err != nil {
		return err
	}
	return d.replaceAtAllDevices()
}

// attachHooks attaches the cgroup hooks, or replaces their programs.
func (d *Datapath) attachHooks() error {
	cgroup, err := NewCgroupTarget(d.cgroup)
	if err != nil {
		return err
	}
	for _, h := range d.hooks() {
		program := d.Program(h.Program)
		if err := d.attach(h, program, cgroup); err != nil {
			return fmt.Errorf("attach %s to %s: %w", h.Name, d.cgroup, err)
		}
		if err := repin(program, programPath(d.options.BPFFS, h)); err != nil {
			return fmt.Errorf("pin program %s: %w", h.Name, err)
		}
	}
	return d.detachUnwanted()
}

// replaceAtAllDevices replaces the programs of an earlier agent at devices.
func (d *Datapath) replaceAtAllDevices() error {
	for _, c := range d.enabled {
		if err := d.replaceAtDevices(c); err != nil {
			return err
		}
	}
	return nil
}

// detachUnwanted removes what an earlier agent with other options or of an earlier version attached, and the tables of
// disabled components.
func (d *Datapath) detachUnwanted() error {
	for _, c := range d.components {
		if err := c.detachFormer(d.options.BPFFS); err != nil {
			return err
		}
		if slices.Contains(d.enabled, c) {
			continue
		}
		if err := c.remove(d.options.BPFFS); err != nil {
			return err
		}
	}
	for _, h := range d.enabled.cgroupHooks() {
		if h.Wanted == nil || h.Wanted(d.options) {
			continue
		}
		if err := detachHook(d.options.BPFFS, h); err != nil {
			return err
		}
	}
	return nil
}

// detachHook detaches what is attached to a cgroup hook, and removes the pin of its program.
func detachHook(bpffs string, h CgroupHook) error {
	l, err := link.LoadPinnedLink(cgroupLinkPath(bpffs, h), nil)
	if err == nil {
		err = takeDown(l)
	}
	if err == nil || errors.Is(err, os.ErrNotExist) {
		err = os.Remove(programPath(bpffs, h))
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("detach %s: %w", h.Name, err)
	}
	return nil
}

// attach replaces the program in the pinned link of a hook. A link to another cgroup is replaced.
func (d *Datapath) attach(h CgroupHook, program *ebpf.Program, cgroup CgroupTarget) error {
	err := d.attachPinned(cgroupLinkPath(d.options.BPFFS, h), program, cgroup, h.Attach)
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: another program is attached there exclusively (`bpftool cgroup show %s`)", err, d.cgroup)
	}
	return err
}

// refuseForeign refuses hooks of another Beeline: of two that look up a Service the first one wins, and the
// other would appear to have no effect.
func (d *Datapath) refuseForeign() error {
	ours := map[ebpf.ProgramID]bool{}
	attached, err := d.Attachments()
	if err != nil {
		return err
	}
	for _, a := range attached {
		ours[ebpf.ProgramID(a.ProgramID)] = true
	}
	for _, h := range d.components.cgroupHooks() {
		found, err := link.QueryPrograms(link.QueryOptions{Target: int(d.cgroupDir.Fd()), Attach: h.Attach})
		if err != nil {
			continue // the cgroup has been removed; attaching returns a better error
		}
		for _, p := range found.Programs {
			info, err := programInfo(p.ID)
			if err == nil && !ours[p.ID] && !d.loaded(p.ID) && info.Name != "" && strings.HasPrefix(h.Program, info.Name) {
				return fmt.Errorf("another Beeline is attached to the cgroup %s (program %d): "+
					"stop it and run `beeline cleanup` with its --pins, or give this agent another --cgroup-root", d.cgroup, p.ID)
			}
		}
	}
	return nil
}

// programInfo returns the kernel's information about a loaded program; os.ErrNotExist if it is not loaded
// any more.
func programInfo(id ebpf.ProgramID) (*ebpf.ProgramInfo, error) {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	return p.Info()
}

// truncated returns a program's or map's name as the kernel stores it (BPF_OBJ_NAME_LEN).
func truncated(name string) string { return name[:min(len(name), 15)] }

// repin replaces a pin atomically.
func repin(program *ebpf.Program, path string) error {
	p, err := program.Clone()
	if err != nil {
		return err
	}
	defer p.Close()
	if err := os.Remove(path + "_new"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := p.Pin(path + "_new"); err != nil {
		return err
	}
	return os.Rename(path+"_new", path)
}

// Attachment is a program with its attach point.
type Attachment struct {
	Hook      string `json:"hook"`
	ProgramID uint32 `json:"programID"`
	LinkID    uint32 `json:"linkID"`
	Cgroup    string `json:"cgroup"`
	// Detached: the cgroup has been removed, and the hook with it.
	Detached bool `json:"detached,omitempty"`
}

// Attachments lists the pinned links of the cgroup hooks of components in a bpffs directory.
func Attachments(bpffs string, components ...*Component) ([]Attachment, error) {
	return cgroupAttachments(bpffs, componentList(components).cgroupHooks())
}

// Attachments lists the pinned links of the components' cgroup hooks.
func (d *Datapath) Attachments() ([]Attachment, error) {
	return cgroupAttachments(d.options.BPFFS, d.components.cgroupHooks())
}

func cgroupAttachments(bpffs string, hooks []CgroupHook) ([]Attachment, error) {
	var all []Attachment
	for _, h := range hooks {
		info, err := readLink(cgroupLinkPath(bpffs, h))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, Attachment{
			Hook:      h.Name,
			ProgramID: uint32(info.Program),
			LinkID:    uint32(info.ID),
			Cgroup:    cgroupName(info.Cgroup().CgroupId),
			Detached:  info.Cgroup().CgroupId == 0,
		})
	}
	return all, nil
}
