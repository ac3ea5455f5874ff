// SPDX-License-Identifier: Apache-2.0

package xdpdispatch

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
)

// A Client is a program that runs in the dispatchers of devices, together with programs of others.
type Client struct {
	// Name is the name of the program in the kernel. It identifies the client's program in a dispatcher.
	Name     string
	Priority uint32 // the lowest runs first
	Flags    uint32 // BPF_F_XDP_HAS_FRAGS, or 0
	// Pins is a directory on a BPF file system. Dispatchers are pinned there while they are added or removed.
	Pins string
	// Program returns what Load has loaded, nil before. Load loads the program so that it can replace a function:
	// this one, and equivalent ones in other dispatchers. Only Join needs them.
	Program func() *ebpf.Program
	Load    func(target *ebpf.Program, function string) (*ebpf.Program, error)
}

// An Attachment is a client's program in the dispatcher of a device.
type Attachment struct {
	Device    int // index
	ProgramID uint32
	Chain     []ChainProgram // all programs of the dispatcher, in the order in which they run
}

// attachFlags are the flags of netlink, by the kernel's mode of attachment.
var attachFlags = map[uint32]uint32{nl.XDP_ATTACHED_DRV: nl.XDP_FLAGS_DRV_MODE, nl.XDP_ATTACHED_SKB: nl.XDP_FLAGS_SKB_MODE}

// Join makes the device's dispatcher run the current program in place of an earlier one with its name. It makes a
// dispatcher if the device has no XDP program. mode is nl.XDP_ATTACHED_DRV or the like.
//
// Errors: *OtherXDPError if the device has another program that cannot be joined.
func (c *Client) Join(device int, mode uint32) ([]ChainProgram, error) {
	change := dispatcherChange{pins: c.Pins, device: device, flags: attachFlags[mode], load: c.Load}
	change.members = func(old *dispatcher) ([]member, bool, error) {
		own := member{
			ChainProgram: ChainProgram{Name: c.Name, Priority: c.Priority},
			program:      c.Program(), flags: c.Flags,
			actions: 1<<dispatcherNotReplaced | 1<<2, // XDP_PASS
		}
		if own.program != nil {
			if err := own.identify(); err != nil {
				return nil, false, err
			}
		}
		if old == nil {
			return []member{own}, true, nil
		}
		if old.mode != mode {
			return nil, false, &OtherXDPError{ProgramID: old.id, Name: dispatcherName, Reason: "it does not run in the requested mode (native or generic): load its programs again in the other mode"}
		}
		if slices.ContainsFunc(old.members, func(m member) bool { return own.ID != 0 && m.ID == own.ID }) {
			return nil, false, nil
		}
		others := slices.DeleteFunc(slices.Clone(old.members), func(m member) bool { return m.Name == own.Name })
		if len(others) == dispatcherPlaces {
			return nil, false, &OtherXDPError{ProgramID: old.id, Name: dispatcherName, Reason: fmt.Sprintf("it already runs %d programs, its maximum: unload one", len(others))}
		}
		return sorted(append(others, own)), true, nil
	}
	if err := change.run(); err != nil {
		return nil, err
	}
	now, err := readDispatcher(device)
	if err != nil || now == nil {
		return nil, errors.Join(err, errors.New("the device has already lost its dispatcher: something else changes its XDP programs"))
	}
	defer now.close()
	return now.chain(c.Name), nil
}

// Leave removes the program from the device's dispatcher, and the dispatcher if it has no other.
func (c *Client) Leave(device int) error {
	xdp := Attached(device)
	if xdp == nil {
		return nil
	}
	change := dispatcherChange{pins: c.Pins, device: device, flags: attachFlags[xdp.AttachMode]}
	change.members = func(old *dispatcher) ([]member, bool, error) {
		if old == nil {
			return nil, false, nil
		}
		others := slices.DeleteFunc(slices.Clone(old.members), func(m member) bool { return m.Name == c.Name })
		return others, len(others) != len(old.members), nil
	}
	return change.run()
}

// Attachments returns where the dispatchers of this network namespace have the program.
func (c *Client) Attachments() (all []Attachment, _ error) {
	if _, err := os.Stat(dispatchersPath()); errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	devices, err := netlink.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("list devices: %w", err)
	}
	for _, device := range devices {
		if xdp := device.Attrs().Xdp; xdp == nil || !xdp.Attached {
			continue
		}
		d, err := readDispatcher(device.Attrs().Index)
		if errors.As(err, new(*OtherXDPError)) || d == nil && err == nil {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("the XDP programs of %s: %w", device.Attrs().Name, err)
		}
		chain := d.chain(c.Name)
		d.close()
		for _, p := range chain {
			if p.Own {
				all = append(all, Attachment{Device: d.device, ProgramID: p.ID, Chain: chain})
			}
		}
	}
	return all, nil
}
