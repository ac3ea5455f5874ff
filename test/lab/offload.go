// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ReadyForXDP prepares the fabric's devices so that native XDP works at their peers, the devices eth0 (and
// eth1) of nodes and clients, as with hardware: packets arrive with complete checksums, and what XDP sends is
// received. A veth drops that if its peer has no XDP program: with GRO alone it stays in a queue, and nothing
// is woken (veth_xdp_flush in drivers/net/veth.c, seen with Linux 6.18).
func (l *Lab) ReadyForXDP() error {
	fabric := l.withRole(RoleFabric)[0]
	return fabric.Do(func() error {
		pass, err := passProgram()
		if err != nil {
			return err
		}
		defer pass.Close()
		for _, link := range plan(l.Shape).links {
			if link.host != fabric.Name {
				continue
			}
			if err := readyForXDP(link.device, pass); err != nil {
				return fmt.Errorf("making the fabric's device %s ready for XDP: %w", link.device, err)
			}
		}
		return nil
	})
}

// PassByXDP has a device of the host receive by native XDP, with a program that passes every packet.
func (h *Host) PassByXDP(device string) error {
	return h.Do(func() error {
		pass, err := passProgram()
		if err != nil {
			return err
		}
		defer pass.Close()
		link, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		return netlink.LinkSetXdpFdWithFlags(link, pass.FD(), nl.XDP_FLAGS_DRV_MODE)
	})
}

// passProgram passes every packet.
func passProgram() (*ebpf.Program, error) {
	return ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "lab_pass", Type: ebpf.XDP, AttachType: ebpf.AttachXDP, Flags: unix.BPF_F_XDP_HAS_FRAGS, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2 /* XDP_PASS */), asm.Return()},
	})
}

func readyForXDP(device string, pass *ebpf.Program) error {
	if err := setEthtool(device, unix.ETHTOOL_SGRO, 1); err != nil {
		return fmt.Errorf("turning GRO on: %w", err)
	}
	if err := setEthtool(device, unix.ETHTOOL_STXCSUM, 0); err != nil {
		return fmt.Errorf("turning checksum offload off: %w", err)
	}
	link, err := netlink.LinkByName(device)
	if err != nil {
		return err
	}
	return netlink.LinkSetXdpFdWithFlags(link, pass.FD(), nl.XDP_FLAGS_DRV_MODE)
}

// ethtoolValue is struct ethtool_value.
type ethtoolValue struct{ command, data uint32 }

// ethtoolRequest is struct ifreq with a pointer.
type ethtoolRequest struct {
	name  [unix.IFNAMSIZ]byte
	value unsafe.Pointer
	_     [16]byte
}

// VLANOffload sets whether a device of the host strips VLAN tags from received frames and adds them to sent
// ones; otherwise the tags are in the frames.
func (h *Host) VLANOffload(device string, on bool) error {
	const rxVLAN, txVLAN = 1 << 8, 1 << 7 // ETH_FLAG_RXVLAN, ETH_FLAG_TXVLAN
	return h.Do(func() error {
		flags, err := ethtool(device, unix.ETHTOOL_GFLAGS, 0)
		if err != nil {
			return err
		}
		flags &^= rxVLAN | txVLAN
		if on {
			flags |= rxVLAN | txVLAN
		}
		if err := setEthtool(device, unix.ETHTOOL_SFLAGS, flags); err != nil {
			return fmt.Errorf("device %s: VLAN offload: %w", device, err)
		}
		return nil
	})
}

// GRO enables generic receive offload of a device. A veth without it, and without XDP, delivers packets on the
// sender's CPU time, and accepts none from its peer's XDP.
func (h *Host) GRO(device string) error {
	return h.Do(func() error {
		if err := setEthtool(device, unix.ETHTOOL_SGRO, 1); err != nil {
			return fmt.Errorf("device %s: turning GRO on: %w", device, err)
		}
		return nil
	})
}

// ChecksumOffload sets whether packets that a device sends leave the computation of their checksums to it, and thus
// their segmentation.
func (h *Host) ChecksumOffload(device string, on bool) error {
	value := uint32(0)
	if on {
		value = 1
	}
	return h.Do(func() error {
		if err := setEthtool(device, unix.ETHTOOL_STXCSUM, value); err != nil {
			return fmt.Errorf("device %s: checksum offload: %w", device, err)
		}
		return nil
	})
}

// setEthtool acts in the network namespace of the calling thread.
func setEthtool(device string, command, data uint32) error {
	_, err := ethtool(device, command, data)
	return err
}

// ethtool returns the value that the kernel has written to data.
func ethtool(device string, command, data uint32) (uint32, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	value := ethtoolValue{command, data}
	request := ethtoolRequest{value: unsafe.Pointer(&value)}
	copy(request.name[:unix.IFNAMSIZ-1], device)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return 0, errno
	}
	return value.data, nil
}
