// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// A hook is one program and the place it belongs to.
type hook struct {
	name    string // of its pins
	program string
	attach  ebpf.AttachType
}

// hooks in the order of attachment: who asks for a peer's name must find the
// answer as soon as a connection has been rewritten.
var hooks = []hook{
	{"getpeername4", SockProgBeelineGetpeername4, ebpf.AttachCgroupInet4GetPeername},
	{"getpeername6", SockProgBeelineGetpeername6, ebpf.AttachCgroupInet6GetPeername},
	{"connect4", SockProgBeelineConnect4, ebpf.AttachCGroupInet4Connect},
	{"connect6", SockProgBeelineConnect6, ebpf.AttachCGroupInet6Connect},
}

func (d *Datapath) linkPath(h hook) string {
	return filepath.Join(d.options.BPFFS, "links", h.name)
}

func (d *Datapath) programPath(h hook) string {
	return filepath.Join(d.options.BPFFS, "programs", h.name)
}

// Attached says whether an earlier agent left links in a bpffs directory: then
// traffic depends on them, and Attach replaces their programs without a gap.
func Attached(bpffs string) bool {
	return slices.ContainsFunc(hooks, func(h hook) bool {
		_, err := os.Stat(filepath.Join(bpffs, "links", h.name))
		return err == nil
	})
}

// Attach attaches the programs, or replaces those of an earlier agent in their
// links. A link to another cgroup than the one asked for is taken down first,
// since a connection that went through both would be looked up twice.
func (d *Datapath) Attach() error {
	id, err := cgroupID(d.cgroup)
	if err != nil {
		return err
	}
	for _, h := range hooks {
		program := d.collection.Programs[h.program]
		if err := d.attach(h, program, id); err != nil {
			return fmt.Errorf("attach %s to %s: %w", h.name, d.cgroup, err)
		}
		if err := pinAnew(program, d.programPath(h)); err != nil {
			return fmt.Errorf("pin program %s: %w", h.name, err)
		}
	}
	return d.swapResized()
}

func (d *Datapath) attach(h hook, program *ebpf.Program, cgroup uint64) error {
	old, err := link.LoadPinnedLink(d.linkPath(h), nil)
	if err == nil {
		defer old.Close()
		if at, err := linkedCgroup(old); err == nil && at == cgroup {
			return old.Update(program)
		}
		if err := old.Unpin(); err != nil {
			return err
		}
		old.Close()
	} else if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	l, err := link.AttachCgroup(link.CgroupOptions{Path: d.cgroup, Attach: h.attach, Program: program})
	if err != nil {
		return err
	}
	defer l.Close()
	return l.Pin(d.linkPath(h))
}

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

// Hooks is the number of attachments when all is well.
var Hooks = len(hooks)

// Attachments lists what the links of a bpffs directory hold.
func Attachments(bpffs string) ([]Attachment, error) {
	var all []Attachment
	for _, h := range hooks {
		l, err := link.LoadPinnedLink(filepath.Join(bpffs, "links", h.name), nil)
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
	m, err := ebpf.LoadPinnedMap(filepath.Join(bpffs, "tables", SockMapSocketCounts), nil)
	if err != nil {
		return nil, fmt.Errorf("open the counters under %s: %w", bpffs, err)
	}
	defer m.Close()
	var perCPU []SocketCounters
	if err := m.Lookup(uint32(0), &perCPU); err != nil {
		return nil, fmt.Errorf("read the counters: %w", err)
	}
	sum := &SocketCounters{}
	for _, c := range perCPU {
		sum.ConnectPass += c.ConnectPass
		sum.ConnectBalance += c.ConnectBalance
		sum.ConnectReject += c.ConnectReject
		sum.ConnectDrop += c.ConnectDrop
		sum.ConnectFault += c.ConnectFault
		sum.AffinityHit += c.AffinityHit
		sum.AffinityFailed += c.AffinityFailed
		sum.RecordFailed += c.RecordFailed
		sum.PeerName += c.PeerName
	}
	return sum, nil
}

// Cleanup detaches everything and removes the directory, its tables and the
// mounts that Open made. It refuses (*LockedError) while an agent is running.
func Cleanup(bpffs string) error {
	if _, err := os.Stat(bpffs); errors.Is(err, os.ErrNotExist) {
		return unmountOwnCgroup()
	}
	lock, err := lockBPFFS(bpffs)
	if err != nil {
		return err
	}
	for _, h := range slices.Backward(hooks) {
		l, err := link.LoadPinnedLink(filepath.Join(bpffs, "links", h.name), nil)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil {
			err = l.Unpin()
			l.Close()
		}
		if err != nil {
			lock.Close()
			return fmt.Errorf("detach %s: %w", h.name, err)
		}
	}
	lock.Close() // an open directory would keep its mount busy
	return errors.Join(removeBPFFS(bpffs), unmountOwnCgroup())
}
