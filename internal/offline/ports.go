// SPDX-License-Identifier: Apache-2.0

package offline

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/node/sockdiag"
)

// PortConflicts returns sockets of the calling thread's network namespace that are bound to NodePorts and
// HostPorts: listening TCP and SCTP sockets, and unconnected UDP sockets except on ephemeral ports. It omits
// sockets of the calling process.
//
// It returns sockdiag.ErrNoProtocol if the kernel cannot list sockets.
func PortConflicts(t *api.Tables) ([]api.PortConflict, error) {
	served := servedPorts(t)
	first, last := ephemeralPorts()
	held := map[uint32]api.PortConflict{} // by inode
	for protocol, states := range map[uint8]sockdiag.States{
		unix.IPPROTO_TCP:  sockdiag.Listening,
		unix.IPPROTO_UDP:  sockdiag.Closed,
		unix.IPPROTO_SCTP: sockdiag.Listening,
	} {
		if !served.protocols[protocol] {
			continue
		}
		sockets, err := sockdiag.List(protocol, states)
		if errors.Is(err, sockdiag.ErrNoProtocol) && protocol == unix.IPPROTO_SCTP {
			continue // then there are no such sockets either
		}
		if err != nil {
			return nil, err
		}
		for _, s := range sockets {
			if protocol == unix.IPPROTO_UDP && first <= s.Local.Port() && s.Local.Port() <= last {
				continue // most likely a client's, because the kernel chose the port
			}
			if owners := served.owners(s); len(owners) > 0 {
				held[s.Inode] = api.PortConflict{Address: s.Local.String(), Protocol: service.Protocol(protocol), Owners: owners}
			}
		}
	}
	if len(held) == 0 {
		return nil, nil
	}
	for _, inode := range openSockets(os.Getpid()) {
		delete(held, inode)
	}
	nameHolders(held)
	return slices.SortedFunc(maps.Values(held), func(a, b api.PortConflict) int {
		return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Address, b.Address), cmp.Compare(a.PID, b.PID))
	}), nil
}

// ephemeralPorts returns the range from which the kernel chooses ports (ip(7)), or its default if it cannot be
// read.
func ephemeralPorts() (first, last uint16) {
	first, last = 32768, 60999
	if text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		fmt.Sscan(string(text), &first, &last)
	}
	return first, last
}

// served holds the frontends that reserve ports, by protocol and port.
type served struct {
	protocols map[uint8]bool
	frontends map[portKey][]ownedFrontend
}

type portKey struct {
	port     uint16
	protocol uint8
}

type ownedFrontend struct {
	addr       netip.Addr
	oneAddress bool
	owner      service.Ref
}

func servedPorts(t *api.Tables) served {
	p := served{map[uint8]bool{}, map[portKey][]ownedFrontend{}}
	for i := range t.Services {
		for _, f := range t.Services[i].Frontends {
			if f.Kind != service.NodePort && f.Kind != service.HostPort {
				continue
			}
			key := portKey{bpf.NetworkOrder(f.Key.Port), f.Key.Protocol}
			p.protocols[key.protocol] = true
			p.frontends[key] = append(p.frontends[key], ownedFrontend{f.Key.Address.Addr(), f.LoopbackExact, t.Services[i].Ref()})
		}
	}
	return p
}

// owners returns the objects whose port a socket occupies.
func (p served) owners(s sockdiag.Socket) []service.Ref {
	var all []service.Ref
	for _, f := range p.frontends[portKey{s.Local.Port(), s.Protocol}] {
		if f.heldBy(s) && !slices.Contains(all, f.owner) {
			all = append(all, f.owner)
		}
	}
	return all
}

// heldBy makes the same decision as bind_takes in bpf/sock/reserved_port.h.
func (f ownedFrontend) heldBy(s sockdiag.Socket) bool {
	bound := s.Local.Addr()
	if bound == netip.IPv6Unspecified() {
		return f.addr.Is6() || !s.V6Only
	}
	bound = bound.Unmap()
	if bound.IsUnspecified() {
		return f.addr.Is4()
	}
	everyLoopback := f.addr == netip.AddrFrom4([4]byte{127, 0, 0, 1}) && !f.oneAddress
	return bound == f.addr || everyLoopback && bound.Is4() && bound.IsLoopback()
}

// nameHolders finds the processes that have the sockets open; of several processes, the one with the lowest
// PID.
func nameHolders(held map[uint32]api.PortConflict) {
	var pids []int
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	for _, pid := range pids {
		for _, inode := range openSockets(pid) {
			h, ok := held[inode]
			if !ok || h.PID != 0 {
				continue
			}
			name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
			if err != nil {
				continue // the process has exited
			}
			h.PID, h.Process = pid, strings.TrimSpace(string(name))
			held[inode] = h
		}
	}
}

// openSockets returns the inodes of a process's open sockets.
func openSockets(pid int) (inodes []uint32) {
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, link := range links {
		target, err := os.Readlink(link)
		if err != nil {
			continue // closed meanwhile
		}
		var inode uint32
		if _, err := fmt.Sscanf(target, "socket:[%d]", &inode); err == nil {
			inodes = append(inodes, inode)
		}
	}
	return inodes
}
