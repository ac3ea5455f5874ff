// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"errors"
	"os"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node/podcgroup"
)

// reroute has what virtual machines send to devices of a pod go to its proxy.
func (s *Shortcut) reroute(p *Pod) error {
	if p.NetNSCookie == 0 || len(p.interfaces.virtual) == 0 {
		p.rerouted, p.transparent, p.notRerouted = nil, nil, false
		return nil
	}
	if devices := p.facts.devices.virtual; p.rerouted == nil || !slices.Equal(p.rerouted, devices) {
		if err := s.attachReroute(p, devices); err != nil {
			return err
		}
	}
	return s.makeTransparent(p)
}

func (s *Shortcut) attachReroute(p *Pod, devices []int) error {
	namespace, err := podcgroup.Namespace(p.CgroupDirectory)
	if namespace == nil || err != nil {
		return err
	}
	defer namespace.Close()
	err = s.datapath.AttachReroute(p.CgroupID, namespace, devices)
	p.notRerouted = errors.Is(err, ebpf.ErrNotSupported)
	if err != nil && !p.notRerouted {
		return err
	}
	p.rerouted = append([]int{}, devices...)
	return nil
}

// makeTransparent sets IP_TRANSPARENT at the sockets at which a proxy listens for connections of applications. Without
// it the kernel does not answer an IPv4 SYN to an address that is not the pod's. Sockets of a proxy that starts later
// are found at the next call; till then the virtual machine repeats its SYN.
func (s *Shortcut) makeTransparent(p *Pod) error {
	listeners := s.datapath.ListenersOf(p.NetNSCookie, true)
	if slices.Equal(listeners, p.transparent) {
		return nil
	}
	namespace, err := podcgroup.Namespace(p.CgroupDirectory)
	if namespace == nil || err != nil {
		return err
	}
	defer namespace.Close()
	err = p.eachListener(namespace, func(fd int, _ uint64, _ uint16) error {
		return os.NewSyscallError("setsockopt IP_TRANSPARENT", unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1))
	}, s.config.options.OutboundPort)
	if err != nil {
		return err
	}
	p.transparent = listeners
	return nil
}

func containsAll[T comparable](all, some []T) bool {
	return !slices.ContainsFunc(some, func(one T) bool { return !slices.Contains(all, one) })
}
