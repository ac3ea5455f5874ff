// SPDX-License-Identifier: Apache-2.0

// Package xdpdispatch lets XDP programs share a device, by the protocol of libxdp, version 2
// (lib/libxdp/protocol.org of xdp-tools).
//
// A device has one XDP program. Several programs share it by a dispatcher, which calls them in turn:
// bpf/xdp_dispatcher.bpf.c, or libxdp's own. Pins record which program has which place in it.
package xdpdispatch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf/pinfs"
)

// The protocol's values for a dispatcher's program.
const (
	dispatcherName    = "xdp_dispatcher"
	dispatcherMagic   = 236
	dispatcherVersion = 2
	// dispatcherNotReplaced is the action of a place without a program.
	dispatcherNotReplaced = 31
)

type dispatcherConfig = XDPDispatcherXdpDispatcherConfig

var dispatcherPlaces = len(dispatcherConfig{}.RunPrios)

// ChainProgram is one of the XDP programs that share a device.
type ChainProgram struct {
	Name     string `json:"name"` // cut to 15 characters by the kernel
	ID       uint32 `json:"programID"`
	Priority uint32 `json:"priority"` // the lowest runs first
	Own      bool   `json:"own,omitempty"`
}

// A dispatcher is a device's XDP program that calls others.
type dispatcher struct {
	device  int
	id      uint32
	mode    uint32 // nl.XDP_ATTACHED_DRV and the like
	program *ebpf.Program
	members []member // in the order in which they run
}

// A member is a program of a dispatcher.
type member struct {
	ChainProgram
	program *ebpf.Program // nil: to be loaded
	actions uint32        // bits: the next program runs after these actions of this one
	flags   uint32        // BPF_F_XDP_HAS_FRAGS, or 0
}

func (d *dispatcher) close() {
	d.program.Close()
	for _, m := range d.members {
		m.program.Close()
	}
}

// chain returns the programs in the order in which they run.
func (d *dispatcher) chain(own string) (all []ChainProgram) {
	for _, m := range d.members {
		m.Own = m.Name == own
		all = append(all, m.ChainProgram)
	}
	return all
}

func (d *dispatcher) pins() string { return dispatcherPins(d.device, d.id) }

// libxdpBPFFS returns the BPF file system that libxdp uses.
func libxdpBPFFS() string {
	if path := os.Getenv("LIBXDP_BPFFS"); path != "" {
		return path
	}
	return pinfs.System
}

// dispatchersPath returns the directory of the dispatchers of all devices.
func dispatchersPath() string { return filepath.Join(libxdpBPFFS(), "xdp") }

func dispatcherPins(device int, id uint32) string {
	return filepath.Join(dispatchersPath(), fmt.Sprintf("dispatch-%d-%d", device, id))
}

func placeName(place int) string { return fmt.Sprintf("prog%d", place) }

// maxChangesSeen is how often others may change a device while it is read.
const maxChangesSeen = 10

// readDispatcher opens the dispatcher of a device; nil if the device has no XDP program. Errors:
// *OtherXDPError if its program is not a dispatcher that can be joined.
func readDispatcher(device int) (*dispatcher, error) {
	for attempt := 0; ; attempt++ {
		xdp := Attached(device)
		if xdp == nil {
			return nil, nil
		}
		d, err := openDispatcher(device, xdp)
		if err == nil {
			return d, nil
		}
		if now := Attached(device); attempt == maxChangesSeen || now != nil && now.ProgId == xdp.ProgId {
			return nil, err
		}
	}
}

func openDispatcher(device int, xdp *netlink.LinkXdp) (d *dispatcher, err error) {
	d = &dispatcher{device: device, id: xdp.ProgId, mode: xdp.AttachMode}
	if d.program, err = ebpf.NewProgramFromID(ebpf.ProgramID(xdp.ProgId)); err != nil {
		return nil, fmt.Errorf("open the XDP program %d of the device: %w", xdp.ProgId, err)
	}
	defer func() {
		if err != nil {
			d.close()
			d = nil
		}
	}()
	info, err := d.program.Info()
	if err != nil {
		return d, err
	}
	other := &OtherXDPError{ProgramID: d.id, Name: info.Name}
	if info.Name != dispatcherName {
		return d, other
	}
	config, err := readDispatcherConfig(info)
	if err != nil {
		return d, err
	}
	if config == nil {
		other.Reason = fmt.Sprintf("it is a dispatcher of another version than %d of libxdp's protocol: load its programs again with a newer xdp-tools (1.3 or later)", dispatcherVersion)
		return d, other
	}
	for place := range min(int(config.NumProgsEnabled), dispatcherPlaces) {
		m := member{actions: config.ChainCallActions[place], flags: config.ProgramFlags[place]}
		m.Priority = config.RunPrios[place]
		path := filepath.Join(d.pins(), placeName(place)+"-prog")
		if m.program, err = ebpf.LoadPinnedProgram(path, nil); errors.Is(err, os.ErrNotExist) {
			other.Reason = fmt.Sprintf("it is a dispatcher, and the pin %s of its program does not exist: if libxdp uses another BPF file system, set LIBXDP_BPFFS for Beeline, too", path)
			return d, other
		}
		if err != nil {
			return d, fmt.Errorf("open %s: %w", path, err)
		}
		d.members = append(d.members, m)
		if err = d.members[place].identify(); err != nil {
			return d, err
		}
	}
	return d, nil
}

func (m *member) identify() error {
	info, err := m.program.Info()
	if err != nil {
		return err
	}
	id, _ := info.ID()
	m.Name, m.ID = info.Name, uint32(id)
	return nil
}

// readDispatcherConfig returns nil for a dispatcher of another version.
func readDispatcherConfig(info *ebpf.ProgramInfo) (*dispatcherConfig, error) {
	ids, _ := info.MapIDs()
	if len(ids) != 1 {
		return nil, nil
	}
	m, err := ebpf.NewMapFromID(ids[0])
	if err != nil {
		return nil, err
	}
	defer m.Close()
	config := &dispatcherConfig{}
	if m.KeySize() != 4 || int(m.ValueSize()) != binary.Size(config) {
		return nil, nil
	}
	if err := m.Lookup(uint32(0), config); err != nil {
		return nil, fmt.Errorf("read the configuration of a dispatcher: %w", err)
	}
	if config.Magic != dispatcherMagic || config.DispatcherVersion != dispatcherVersion {
		return nil, nil
	}
	return config, nil
}

// configFor returns the configuration of a dispatcher of these programs.
func configFor(members []member) dispatcherConfig {
	c := dispatcherConfig{Magic: dispatcherMagic, DispatcherVersion: dispatcherVersion, NumProgsEnabled: uint8(len(members)), IsXdpFrags: 1}
	for place, m := range members {
		c.ChainCallActions[place], c.RunPrios[place], c.ProgramFlags[place] = m.actions, m.Priority, m.flags
		if m.flags&unix.BPF_F_XDP_HAS_FRAGS == 0 {
			c.IsXdpFrags = 0 // fragments need support by all programs
		}
	}
	return c
}

// sorted sorts members by priority, and keeps the order of equal ones.
func sorted(members []member) []member {
	slices.SortStableFunc(members, func(a, b member) int { return int(int64(a.Priority) - int64(b.Priority)) })
	return members
}
