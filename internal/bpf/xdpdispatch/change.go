// SPDX-License-Identifier: Apache-2.0

package xdpdispatch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf/pinfs"
)

// A dispatcherChange replaces the dispatcher of a device atomically.
type dispatcherChange struct {
	pins   string // Client.Pins
	device int
	flags  uint32 // XDP_FLAGS_DRV_MODE or XDP_FLAGS_SKB_MODE
	// members returns the members of the new dispatcher, given the old one, which is nil if the device
	// has no XDP program. changed is false if the old one can stay.
	members func(old *dispatcher) (all []member, changed bool, err error)
	// load loads the program of a member that has none, so that it can replace a function.
	load func(target *ebpf.Program, function string) (*ebpf.Program, error)
}

// run makes the change, and retries it if others change the device at the same time.
func (c *dispatcherChange) run() error {
	unlock, err := lockDispatchers()
	if err != nil {
		return err
	}
	defer unlock()
	if err := finishChanges(c.pins); err != nil {
		return err
	}
	for attempt := 0; ; attempt++ {
		err := c.try()
		if !changedMeanwhile(err) || attempt == maxChangesSeen {
			return err
		}
	}
}

// changedMeanwhile reports whether setXDP found another program than the expected one.
func changedMeanwhile(err error) bool {
	return errors.Is(err, unix.EEXIST) || errors.Is(err, unix.EBUSY)
}

func (c *dispatcherChange) try() error {
	old, err := readDispatcher(c.device)
	if err != nil {
		return err
	}
	if old != nil {
		defer old.close()
	}
	members, changed, err := c.members(old)
	if err != nil || !changed {
		return err
	}
	if len(members) == 0 {
		if err := setXDP(c.device, nil, old, c.flags); err != nil {
			return err
		}
		return os.RemoveAll(old.pins())
	}
	program, err := loadDispatcher(configFor(members))
	if err != nil {
		return err
	}
	defer program.Close()
	return errors.Join(c.swap(old, program, members), finishChanges(c.pins))
}

// swap attaches a dispatcher in place of the old one. If it fails or is interrupted, finishChanges removes
// what is left of either.
func (c *dispatcherChange) swap(old *dispatcher, program *ebpf.Program, members []member) error {
	id, err := programID(program)
	if err != nil {
		return err
	}
	if old != nil {
		if err := pinProgram(old.program, changePath(c.pins, c.device, old.id)); err != nil {
			return err
		}
	}
	if err := pinProgram(program, changePath(c.pins, c.device, id)); err != nil {
		return err
	}
	pins := dispatcherPins(c.device, id)
	if err := os.Mkdir(pins, 0o700); err != nil {
		return err
	}
	for place, m := range members {
		if err := c.fill(program, place, m, pins); err != nil {
			return fmt.Errorf("place %d of the dispatcher: %w", place, err)
		}
	}
	return setXDP(c.device, program, old, c.flags)
}

// fill puts a program in its place in a dispatcher, and pins both.
func (c *dispatcherChange) fill(dispatcher *ebpf.Program, place int, m member, pins string) (err error) {
	program, name := m.program, placeName(place)
	if program == nil {
		if program, err = c.load(dispatcher, name); err != nil {
			return err
		}
	}
	l, err := link.AttachFreplace(dispatcher, name, program)
	if err != nil {
		return fmt.Errorf("attach program %s: %w", m.Name, err)
	}
	defer l.Close()
	if err := pinProgram(program, filepath.Join(pins, name+"-prog")); err != nil {
		return err
	}
	return l.Pin(filepath.Join(pins, name+"-link"))
}

// changePath returns where a dispatcher is pinned while it is added or removed.
func changePath(pins string, device int, id uint32) string {
	return filepath.Join(pins, fmt.Sprintf("dispatch-%d-%d", device, id))
}

func changesOf(pins string) ([]string, error) {
	return filepath.Glob(filepath.Join(pins, "dispatch-*"))
}

// finishChanges removes the pins of the dispatchers of changes that have ended, or during which an agent
// was killed, except for attached dispatchers. The caller holds the lock.
func finishChanges(pins string) error {
	paths, err := changesOf(pins)
	if err != nil {
		return err
	}
	for _, path := range paths {
		var device int
		var id uint32
		if _, err := fmt.Sscanf(filepath.Base(path), "dispatch-%d-%d", &device, &id); err != nil {
			continue
		}
		if xdp := Attached(device); xdp == nil || xdp.ProgId != id {
			if err := os.RemoveAll(dispatcherPins(device, id)); err != nil {
				return err
			}
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Recover finishes the changes during which an agent was killed.
func (c *Client) Recover() error {
	if paths, err := changesOf(c.Pins); err != nil || len(paths) == 0 {
		return err
	}
	unlock, err := lockDispatchers()
	if err != nil {
		return err
	}
	defer unlock()
	return finishChanges(c.Pins)
}

// dispatcherLockTimeout is how long another program may hold the lock: what it is held for takes
// milliseconds.
const dispatcherLockTimeout = 10 * time.Second

// lockDispatchers takes libxdp's lock for changing pins.
func lockDispatchers() (unlock func(), err error) {
	path := dispatchersPath()
	if on, err := pinfs.IsFS(libxdpBPFFS(), unix.BPF_FS_MAGIC); err != nil || !on {
		return nil, errors.Join(err, fmt.Errorf("XDP programs share a device by pins under %s, which is not on a BPF file system: mount one there, or name another with LIBXDP_BPFFS", path))
	}
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	for begin := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { dir.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Since(begin) > dispatcherLockTimeout {
			_, pid := pinfs.LockHolder(dir)
			dir.Close()
			return nil, fmt.Errorf("lock %s, which process %s holds: %w", path, pidText(pid), err)
		}
	}
}

func pidText(pid int) string {
	if pid == 0 {
		return "of another PID namespace"
	}
	return strconv.Itoa(pid)
}

// Values of the netlink attribute IFLA_XDP (include/uapi/linux/if_link.h).
const (
	iflaXDPExpectedFD = 8
	xdpFlagsReplace   = 1 << 4
	xdpFlagsIfNoexist = nl.XDP_FLAGS_UPDATE_IF_NOEXIST
)

// setXDP replaces the XDP program of a device if it still is `old`; program and `old` may be nil for none.
// Errors: unix.EEXIST, unix.EBUSY if the device has another program.
func setXDP(device int, program *ebpf.Program, old *dispatcher, flags uint32) error {
	number := func(n int) []byte { return binary.NativeEndian.AppendUint32(nil, uint32(n)) }
	attrs, fd := nl.NewRtAttr(unix.IFLA_XDP|unix.NLA_F_NESTED, nil), -1
	if program != nil {
		fd = program.FD()
	}
	attrs.AddRtAttr(nl.IFLA_XDP_FD, number(fd))
	if old != nil {
		attrs.AddRtAttr(iflaXDPExpectedFD, number(old.program.FD()))
		flags |= xdpFlagsReplace
	} else {
		flags |= xdpFlagsIfNoexist
	}
	attrs.AddRtAttr(nl.IFLA_XDP_FLAGS, number(int(flags)))
	request := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	message := nl.NewIfInfomsg(unix.AF_UNSPEC)
	message.Index = int32(device)
	request.AddData(message)
	request.AddData(attrs)
	_, err := request.Execute(unix.NETLINK_ROUTE, 0)
	if err != nil {
		return fmt.Errorf("attach a dispatcher: %w", err)
	}
	return nil
}

func programID(p *ebpf.Program) (uint32, error) {
	info, err := p.Info()
	if err != nil {
		return 0, err
	}
	id, _ := info.ID()
	return uint32(id), nil
}

// pinProgram pins a program, which may have other pins.
func pinProgram(p *ebpf.Program, path string) error {
	c, err := p.Clone()
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.Pin(path); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}
