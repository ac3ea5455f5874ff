// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"errors"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/node/netns"
)

// client finds the network namespace with the source address: this one, or a pod's.
func (x *explainer) client() (cookie uint64, class service.SourceClass, err error) {
	source := x.question.Source.Addr()
	own, err := ownAddress(source)
	if err != nil {
		return 0, 0, err
	}
	if own {
		cookie, err = netns.CurrentCookie()
		return cookie, service.FromNode, err
	}
	networks, err := x.raw.Networks.All()
	if err != nil {
		return 0, 0, err
	}
	ns, near, err := podNamespace(source)
	if err != nil {
		return 0, 0, err
	}
	// A namespace to which no device leads may have the address by coincidence, unless it is a pod's
	// address.
	if ns == 0 || !near && networkOf(networks, source) != bpf.NetworkPod {
		return 0, 0, api.BadRequest("%s is not an address of this node or of a pod on it: use `beeline explain packet` for its packets", source)
	}
	return ns, service.FromPod, nil
}

// podNamespace returns the cookie of another namespace that has an address, or 0. It prefers one to which a
// device of this namespace leads, and then sets near.
func podNamespace(a netip.Addr) (found uint64, near bool, err error) {
	here, err := netns.Current()
	if err != nil {
		return 0, false, err
	}
	defer here.Close()
	best := 0
	for ns, err := range netns.All() {
		if err != nil {
			continue // the namespaces of some processes cannot be read
		}
		if rank, cookie := nearness(ns, here.Inode, a); rank > best {
			best, found = rank, cookie
		}
	}
	return found, best == 2, nil
}

// nearness returns 0 for a namespace without the address, 1 for one with it, and 2 if a device also leads
// there.
func nearness(ns *netns.Namespace, here uint64, a netip.Addr) (rank int, cookie uint64) {
	if ns.Inode == here {
		return 0, 0
	}
	fd := -1
	err := ns.Do(func() (err error) {
		has, err := ownAddress(a)
		if err != nil || !has {
			return errors.Join(err, errOtherNode)
		}
		if cookie, err = netns.CurrentCookie(); err != nil {
			return err
		}
		fd, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return 0, 0 // the namespace may be going away
	}
	defer unix.Close(fd)
	if id, err := netlink.GetNetNsIdByFd(fd); err == nil && id >= 0 {
		return 2, cookie
	}
	return 1, cookie
}

var errOtherNode = errors.New("the address does not belong to this namespace")
