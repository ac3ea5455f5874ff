// SPDX-License-Identifier: Apache-2.0

// Package tcfilter lists the filters of tc and the BPF programs at devices of this network namespace that are not
// Beeline's: what they do to packets is not known.
package tcfilter

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/cilium/ebpf"
	ebpflink "github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node/netdev"
)

// A Finder finds filters. It keeps what it has learnt of programs. All methods may be called from any goroutine.
type Finder struct {
	foreign func(program uint32) (name string, foreign bool)

	mu       sync.Mutex
	programs map[uint32]program
}

// New returns a finder. foreign tells of a BPF program by its ID whether it is not Beeline's, and its name.
func New(foreign func(program uint32) (name string, foreign bool)) *Finder {
	return &Finder{foreign: foreign, programs: map[uint32]program{}}
}

// A program is what is known of a BPF program. The kernel does not reuse its ID soon.
type program struct {
	name    string
	foreign bool
}

// mostPrograms bounds what a finder keeps.
const mostPrograms = 4096

func (f *Finder) program(id uint32) program {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, known := f.programs[id]
	if !known {
		if len(f.programs) >= mostPrograms {
			clear(f.programs)
		}
		p.name, p.foreign = f.foreign(id)
		f.programs[id] = p
	}
	return p
}

// IsForeign reports whether a program is not Beeline's.
func (f *Finder) IsForeign(id uint32) bool { return f.program(id).foreign }

// NameOf names a program for the operator.
func (f *Finder) NameOf(id uint32) string {
	if name := f.program(id).name; name != "" {
		return fmt.Sprintf("%s, id %d", name, id)
	}
	return fmt.Sprintf("id %d", id)
}

// A Direction is where filters and programs are at a device.
type Direction struct {
	Name   string
	parent uint32 // of filters of the qdiscs clsact and ingress
	hook   string // of programs in links
	links  ebpf.AttachType
}

// The directions of packets at a device, and the hooks of a netkit device (Linux 6.7): what a pod sends meets programs
// at the peer hook, the other one is on the way into the pod.
var (
	Ingress       = Direction{"ingress", netlink.HANDLE_MIN_INGRESS, "tcx ingress", ebpf.AttachTCXIngress}
	Egress        = Direction{"egress", netlink.HANDLE_MIN_EGRESS, "tcx egress", ebpf.AttachTCXEgress}
	NetkitPrimary = Direction{hook: "netkit primary", links: ebpf.AttachNetkitPrimary}
	NetkitPeer    = Direction{hook: "netkit peer", links: ebpf.AttachNetkitPeer}
)

// Classifiers describes the filters of a device that has a qdisc clsact, or ingress for that direction. A device that
// is gone has none.
func (f *Finder) Classifiers(device int, d Direction) (all []string, err error) {
	list, err := netdev.Dump(func() ([]netlink.Filter, error) {
		return netlink.FilterList(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: device}}, d.parent)
	})
	switch {
	case errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL):
		return nil, nil
	case err != nil:
		return nil, err
	}
	for _, c := range list {
		b, isProgram := c.(*netlink.BpfFilter)
		switch {
		case !isProgram:
			all = append(all, fmt.Sprintf("tc filter %s at %s", c.Type(), d.Name))
		case f.IsForeign(uint32(b.Id)):
			all = append(all, fmt.Sprintf("BPF program %s (tc filter at %s)", f.NameOf(uint32(b.Id)), d.Name))
		}
	}
	return all, nil
}

// Programs describes the programs in links of tcx (Linux 6.6), or of netkit, at a device. A device that is gone has
// none, nor has one of an earlier kernel.
func (f *Finder) Programs(device int, d Direction) (all []string, err error) {
	list, err := ebpflink.QueryPrograms(ebpflink.QueryOptions{Target: device, Attach: d.links})
	switch {
	case errors.Is(err, unix.ENODEV) || errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, unix.EINVAL):
		return nil, nil
	case err != nil:
		return nil, err
	}
	for _, p := range list.Programs {
		if id := uint32(p.ID); f.IsForeign(id) {
			all = append(all, fmt.Sprintf("BPF program %s (%s)", f.NameOf(id), d.hook))
		}
	}
	return all, nil
}

// shapers are the kinds of root qdiscs that delay or drop packets by what they are, and not only by how many wait.
var shapers = map[string]bool{
	"cake": true, "cbs": true, "drr": true, "etf": true, "ets": true, "hfsc": true, "htb": true, "netem": true, "prio": true,
	"qfq": true, "taprio": true, "tbf": true,
}

// A Found describes what is at a device.
type Found struct {
	Device  int
	Ingress []string // filters and programs
	Egress  []string // filters, programs and the queue, if it shapes traffic
}

// At describes what is at some devices, by their indexes and names, in the order of the indexes. qdiscs are those of
// all devices.
func (f *Finder) At(devices map[int]string, qdiscs []netlink.Qdisc) (all []Found, err error) {
	for _, index := range slices.Sorted(maps.Keys(devices)) {
		found, err := f.at(index, qdiscs)
		if err != nil {
			return nil, fmt.Errorf("list the filters of tc at %s: %w", devices[index], err)
		}
		all = append(all, found)
	}
	return all, nil
}

func (f *Finder) at(device int, qdiscs []netlink.Qdisc) (Found, error) {
	found := Found{Device: device}
	for _, q := range qdiscs {
		if q.Attrs().LinkIndex != device {
			continue
		}
		switch kind := q.Type(); {
		case kind == "clsact" || kind == "ingress":
			if err := add(&found.Ingress, f.Classifiers, device, Ingress); err != nil {
				return found, err
			}
			if kind == "clsact" {
				if err := add(&found.Egress, f.Classifiers, device, Egress); err != nil {
					return found, err
				}
			}
		case shapers[kind] && q.Attrs().Parent == netlink.HANDLE_ROOT:
			found.Egress = append(found.Egress, "qdisc "+kind)
		}
	}
	return found, errors.Join(add(&found.Ingress, f.Programs, device, Ingress), add(&found.Egress, f.Programs, device, Egress))
}

func add(all *[]string, list func(int, Direction) ([]string, error), device int, d Direction) error {
	found, err := list(device, d)
	*all = append(*all, found...)
	return err
}
