// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"errors"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/netns"
	"beeline.io/beeline/internal/service"
)

// client finds the network namespace that has the source's address: this one, or a
// pod's.
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
	// What no device leads to may be anything that has the address by chance, unless
	// that is a pod's.
	if ns == 0 || !near && networkOf(networks, source) != datapath.NetworkPod {
		return 0, 0, wrong("%s is no address of this node, nor of a pod on it that can be found: --socket explains only their sockets", source)
	}
	return ns, service.FromPod, nil
}

// podNamespace is the cookie of another namespace that has an address; of several the
// one that a device of this namespace leads to, and then it is near. 0: none.
func podNamespace(a netip.Addr) (found uint64, near bool, err error) {
	here, err := netns.Current()
	if err != nil {
		return 0, false, err
	}
	defer here.Close()
	best := 0
	for ns, err := range netns.All() {
		if err != nil {
			continue // those of some processes cannot be read
		}
		if rank, cookie := nearness(ns, here.Inode, a); rank > best {
			best, found = rank, cookie
		}
	}
	return found, best == 2, nil
}

// nearness is 0 for a namespace without the address, 2 for one that has it and that a
// device leads to.
func nearness(ns *netns.Namespace, here uint64, a netip.Addr) (rank int, cookie uint64) {
	if ns.Inode == here {
		return 0, 0
	}
	fd := -1
	err := ns.Do(func() (err error) {
		has, err := ownAddress(a)
		if err != nil || !has {
			return errors.Join(err, errElsewhere)
		}
		if cookie, err = netns.CurrentCookie(); err != nil {
			return err
		}
		fd, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return 0, 0 // it may be ending
	}
	defer unix.Close(fd)
	if id, err := netlink.GetNetNsIdByFd(fd); err == nil && id >= 0 {
		return 2, cookie
	}
	return 1, cookie
}

var errElsewhere = errors.New("the address is not of this namespace")
