// SPDX-License-Identifier: Apache-2.0

package netdev

import (
	"bytes"
	"encoding/binary"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ethtool sends a SIOCETHTOOL request for a device; value begins with the command, and receives the reply.
func ethtool(device string, value unsafe.Pointer) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	request := struct {
		name  [unix.IFNAMSIZ]byte
		value unsafe.Pointer
		_     [16]byte
	}{value: value}
	copy(request.name[:unix.IFNAMSIZ-1], device)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return errno
	}
	return nil
}

const (
	statisticNames  = 1  // ETH_SS_STATS
	statisticLength = 32 // ETH_GSTRING_LEN
)

// statistics returns the statistics of a device's driver, by name.
func statistics(device string) (map[string]uint64, error) {
	info := unix.EthtoolDrvinfo{Cmd: unix.ETHTOOL_GDRVINFO}
	if err := ethtool(device, unsafe.Pointer(&info)); err != nil {
		return nil, err
	}
	n := int(info.N_stats)
	// The kernel writes as many as the driver has by then: room for those that appear meanwhile (more queues).
	room := 2*n + 4096
	names := make([]byte, 12+room*statisticLength)
	values := make([]uint64, 1+room)
	binary.NativeEndian.PutUint32(names, unix.ETHTOOL_GSTRINGS)
	binary.NativeEndian.PutUint32(names[4:], statisticNames)
	binary.NativeEndian.PutUint32(names[8:], info.N_stats)
	header := (*[2]uint32)(unsafe.Pointer(&values[0]))
	header[0], header[1] = unix.ETHTOOL_GSTATS, info.N_stats
	if err := ethtool(device, unsafe.Pointer(&names[0])); err != nil {
		return nil, err
	}
	if err := ethtool(device, unsafe.Pointer(&values[0])); err != nil {
		return nil, err
	}
	all := make(map[string]uint64, n)
	for i := range n {
		name, _, _ := bytes.Cut(names[12+i*statisticLength:][:statisticLength], []byte{0})
		all[string(name)] = values[1+i]
	}
	return all, nil
}

// XDPLosses returns how many packets sent by XDP programs a driver has dropped, by its own count; 0 if it
// has none. Drivers use different names for these counts: xdp_tx_errors, xdp_xmit_errors (veth),
// xdp_tx_drops (virtio_net), tx_xdp_full (mlx5).
func XDPLosses(device string) (sum uint64) {
	all, err := statistics(device)
	if err != nil {
		return 0
	}
	for name, n := range all {
		if isXDPLoss(name) {
			sum += n
		}
	}
	return sum
}

func isXDPLoss(name string) bool {
	has := func(words ...string) bool {
		for _, w := range words {
			if strings.Contains(name, w) {
				return true
			}
		}
		return false
	}
	return has("xdp_tx", "xdp_xmit", "tx_xdp") && has("err", "drop", "full")
}

// StripsTags reports whether a driver strips VLAN tags. A driver that does not tell counts as one that does
// not.
func StripsTags(device string) bool {
	const ethtoolGFlags, rxVLAN = unix.ETHTOOL_GFLAGS, 1 << 8 // ETH_FLAG_RXVLAN
	value := struct{ command, data uint32 }{command: ethtoolGFlags}
	return ethtool(device, unsafe.Pointer(&value)) == nil && value.data&rxVLAN != 0
}
