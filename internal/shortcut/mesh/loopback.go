// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node/netns"
)

// applicationSource is from where Istio's proxy connects to the application by IPv6, as by IPv4 from 127.0.0.6. Such
// connections to the pod's own address do not go to the proxy again. It is added to the pod's lo, as by istio-iptables.
var applicationSource = netip.MustParseAddr("::6")

func addApplicationSource(namespace *netns.Namespace) error {
	err := namespace.Do(func() error {
		lo, err := netlink.LinkByIndex(1) // LOOPBACK_IFINDEX
		if err != nil {
			return err
		}
		return netlink.AddrAdd(lo, &netlink.Addr{IPNet: netlink.NewIPNet(applicationSource.AsSlice()), Flags: unix.IFA_F_NODAD})
	})
	// It exists, or the pod has no IPv6 (disable_ipv6, or a kernel without it).
	if err == nil || errors.Is(err, unix.EEXIST) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	return fmt.Errorf("add %s to lo of the pod: %w", applicationSource, err)
}
