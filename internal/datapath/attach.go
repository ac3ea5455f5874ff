// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// A hook is one program and the place it belongs to.
type hook struct {
	name    string // of its pins
	program string
	attach  ebpf.AttachType
	// wanted says whether the options ask for it; nil: always.
	wanted func(Options) bool
}

// allHooks in the order of attachment: who asks for a peer's name must find the
// answer as soon as a connection or datagram has been rewritten.
var allHooks = []hook{
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

// hooks are those that the options ask for.
func (o Options) hooks() []hook {
	return slices.DeleteFunc(slices.Clone(allHooks), func(h hook) bool { return h.wanted != nil && !h.wanted(o) })
}

// Hooks is the number of attachments when all is well.
func (d *Datapath) Hooks() int { return len(d.options.hooks()) }

func linkPath(bpffs string, h hook) string { return filepath.Join(bpffs, "links", h.name) }

func (d *Datapath) programPath(h hook) string {
	return filepath.Join(d.options.BPFFS, "programs", h.name)
}

// Attached says whether an earlier agent left links in a bpffs directory: then
// traffic depends on them, and Attach replaces their programs without a gap.
func Attached(bpffs string) bool {
	return slices.ContainsFunc(allHooks, func(h hook) bool {
		_, err := os.Stat(linkPath(bpffs, h))
		return err == nil
	})
}

// Attach attaches the programs, or replaces those of an earlier agent in their
// links. A link to another cgroup than the one asked for is taken down first,
// since a connection that went through both would be looked up twice.
func (d *Datapath) Attach() error {
	kernelBTF.Store(nil) // what is loaded later is little, and seldom
	id, err := cgroupID(d.cgroup)
	if err != nil {
		return err
	}
	if err := d.refuseForeign(); err != nil {
		return err
	}
	for _, h := range d.options.hooks() {
		program := d.program(h.program)
		if err := d.attach(h, program, id); err != nil {
			return fmt.Errorf("attach %s to %s: %w", h.name, d.cgroup, err)
		}
		if err := pinAnew(program, d.programPath(h)); err != nil {
			return fmt.Errorf("pin program %s: %w", h.name, err)
		}
	}
	if err := d.detachUnwanted(); err != nil {
		return err
	}
	if err := d.replaceEdge(); err != nil {
		return err
	}
	return d.swapResized()
}

// detachUnwanted takes down what an earlier agent with other options attached.
func (d *Datapath) detachUnwanted() error {
	for _, h := range allHooks {
		if h.wanted == nil || h.wanted(d.options) {
			continue
		}
		l, err := link.LoadPinnedLink(linkPath(d.options.BPFFS, h), nil)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil {
			err = takeDown(l)
		}
		if err == nil {
			err = os.Remove(d.programPath(h))
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("detach %s: %w", h.name, err)
		}
	}
	return nil
}

func (d *Datapath) attach(h hook, program *ebpf.Program, cgroup uint64) error {
	old, err := link.LoadPinnedLink(linkPath(d.options.BPFFS, h), nil)
	if err == nil {
		if at, err := linkedCgroup(old); err == nil && at == cgroup {
			return errors.Join(old.Update(program), old.Close())
		}
		if err := takeDown(old); err != nil {
			return err
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	l, err := link.AttachCgroup(link.CgroupOptions{Path: d.cgroup, Attach: h.attach, Program: program})
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: another program is attached there for itself alone (`bpftool cgroup show %s`)", err, d.cgroup)
	}
	if err != nil {
		return err
	}
	defer l.Close()
	return l.Pin(linkPath(d.options.BPFFS, h))
}

// refuseForeign looks for hooks of another Beeline: of two that look a Service
// up the first one wins, and whoever looks after the second wonders.
func (d *Datapath) refuseForeign() error {
	ours := map[ebpf.ProgramID]bool{}
	attached, err := Attachments(d.options.BPFFS)
	if err != nil {
		return err
	}
	for _, a := range attached {
		ours[ebpf.ProgramID(a.ProgramID)] = true
	}
	for _, h := range allHooks {
		found, err := link.QueryPrograms(link.QueryOptions{Target: int(d.cgroupDir.Fd()), Attach: h.attach})
		if err != nil {
			continue // a cgroup that has been removed; attaching says more
		}
		for _, p := range found.Programs {
			info, err := programInfo(p.ID)
			if err == nil && !ours[p.ID] && !d.loaded(p.ID) && info.Name != "" && strings.HasPrefix(h.program, info.Name) {
				return fmt.Errorf("another Beeline is attached to the cgroup %s (program %d): "+
					"stop it and run `beeline cleanup` with its --bpffs, or give this agent another --cgroup-root", d.cgroup, p.ID)
			}
		}
	}
	return nil
}

// programInfo is what the kernel says of a program that is loaded; os.ErrNotExist if it
// is no more.
func programInfo(id ebpf.ProgramID) (*ebpf.ProgramInfo, error) {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	return p.Info()
}

// truncated is what the kernel keeps of a program's or map's name
// (BPF_OBJ_NAME_LEN).
func truncated(name string) string { return name[:min(len(name), 15)] }

func linkedCgroup(l link.Link) (uint64, error) {
	info, err := l.Info()
	if err != nil {
		return 0, err
	}
	return info.Cgroup().CgroupId, nil
}

// pinAnew replaces a pin in one step.
func pinAnew(program *ebpf.Program, path string) error {
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

// Attachment is one program where it is attached.
type Attachment struct {
	Hook      string `json:"hook"`
	ProgramID uint32 `json:"programID"`
	LinkID    uint32 `json:"linkID"`
	Cgroup    string `json:"cgroup"`
	// Detached: the cgroup has been removed, and the hook with it.
	Detached bool `json:"detached,omitempty"`
}

// Attachments lists what the links of a bpffs directory hold.
func Attachments(bpffs string) ([]Attachment, error) {
	var all []Attachment
	for _, h := range allHooks {
		l, err := link.LoadPinnedLink(linkPath(bpffs, h), nil)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("open pinned link %s: %w", h.name, err)
		}
		info, err := l.Info()
		l.Close()
		if err != nil {
			return nil, fmt.Errorf("read pinned link %s: %w", h.name, err)
		}
		all = append(all, Attachment{
			Hook:      h.name,
			ProgramID: uint32(info.Program),
			LinkID:    uint32(info.ID),
			Cgroup:    cgroupName(info.Cgroup().CgroupId),
			Detached:  info.Cgroup().CgroupId == 0,
		})
	}
	return all, nil
}

// ReadCounters adds up what the socket hooks counted on all CPUs.
func ReadCounters(bpffs string) (*SocketCounters, error) {
	m, err := ebpf.LoadPinnedMap(TablePath(bpffs, SockMapSocketCounts), nil)
	if err != nil {
		return nil, fmt.Errorf("open the counters under %s: %w", bpffs, err)
	}
	defer m.Close()
	var perCPU []SocketCounters
	if err := m.Lookup(uint32(0), &perCPU); err != nil {
		return nil, fmt.Errorf("read the counters: %w", err)
	}
	sum := &SocketCounters{}
	total := reflect.ValueOf(sum).Elem()
	for _, c := range perCPU {
		for i := range total.NumField() {
			if field := total.Field(i); field.CanSet() {
				field.SetUint(field.Uint() + reflect.ValueOf(c).Field(i).Uint())
			}
		}
	}
	return sum, nil
}
