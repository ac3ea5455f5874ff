// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/node/netdev"
	"beeline.io/beeline/internal/node/netns"
	"beeline.io/beeline/internal/node/podcgroup"
	"beeline.io/beeline/internal/node/sockdiag"
)

// facts are what the agent finds out about a running pod.
type facts struct {
	known bool
	// missing is why some of this is as it was before; nil: all is up to date.
	missing error
	// users and groups are those of the pod's user namespace.
	users, groups idMap
	// addresses are the pod's own.
	addresses []netip.Addr
	// servers are the name servers of its resolv.conf, as a process of the pod had it when the proxy with these
	// listeners started.
	servers   []netip.Addr
	devices   podDevices
	listeners []uint64
	reading   *reading // nil: none has begun, or it has ended
	// listens: a process listens for connections of applications. stranger is one that is not the proxy; empty:
	// there is none. listensInbound is the same as listens for connections from other hosts.
	listens, listensInbound bool
	stranger                string
}

func (f *facts) equal(other *facts) bool {
	return slices.Equal(f.users, other.users) && slices.Equal(f.groups, other.groups) &&
		slices.Equal(f.addresses, other.addresses) && slices.Equal(f.servers, other.servers) && f.devices.equal(&other.devices)
}

// learn returns what is found out about a pod whose network namespace is known. What cannot be read stays as it was.
func (s *Shortcut) learn(p *Pod) (f facts, err error) {
	f = p.facts
	namespace, err := podcgroup.Namespace(p.CgroupDirectory)
	if namespace == nil || err != nil {
		return f, err
	}
	defer namespace.Close()
	pids, err := podcgroup.Processes(p.CgroupDirectory)
	if err != nil {
		return f, err
	}
	f.known = true
	addresses, err := ownAddresses(namespace)
	if err == nil {
		f.addresses = addresses
	}
	if p.mapped {
		users, groups, e := mapsOf(namespace, pids)
		if e == nil {
			f.users, f.groups = users, groups
		}
		err = errors.Join(err, e)
	}
	mapped := *p // its proxy, as these maps tell it
	mapped.facts = f
	mapped.identify()
	listening, e := listeningIn(namespace)
	if e == nil {
		outbound := listening[s.config.options.OutboundPort]
		f.listens, f.stranger, f.listensInbound = len(outbound) > 0, mapped.stranger(outbound, pids), len(listening[s.config.options.InboundPort]) > 0
	}
	err = errors.Join(err, e)
	listeners := s.datapath.ListenersOf(p.NetNSCookie, false)
	slices.Sort(listeners)
	if p.policy.DNS && !p.policy.AllNameServers && (f.servers == nil || !slices.Equal(listeners, f.listeners)) {
		of := mapped.proxyFirst(pids)
		err = errors.Join(err, f.readServers(listeners, func() ([]netip.Addr, error) { return nameServersOf(of) }))
	}
	return f, err
}

// ownAddresses lists the addresses of a network namespace, except those of loopback networks.
func ownAddresses(namespace *netns.Namespace) (all []netip.Addr, err error) {
	err = namespace.Do(func() error {
		list, err := netdev.Addresses()
		for _, a := range list {
			if !a.IsLoopback() {
				all = append(all, a.Addr)
			}
		}
		return err
	})
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all), err
}

// containerOf returns the cgroup of a container of a pod: a directory that container runtimes name after the container,
// with the name of the runtime before it (cri-containerd-ID.scope, crio-ID.scope, ID). Empty: there is none.
func containerOf(pod, id string) string {
	if id == "" {
		return ""
	}
	entries, err := os.ReadDir(pod)
	if err != nil {
		return ""
	}
	for _, e := range entries {
		name, found := strings.CutSuffix(strings.TrimSuffix(e.Name(), ".scope"), id)
		if found && e.IsDir() && (name == "" || strings.HasSuffix(name, "-")) && !strings.Contains(name, "conmon") {
			return filepath.Join(pod, e.Name())
		}
	}
	return ""
}

// cgroupOf returns the id of a cgroup; 0: there is none.
func cgroupOf(directory string) uint64 {
	var st unix.Stat_t
	if directory == "" || unix.Stat(directory, &st) != nil {
		return 0
	}
	return st.Ino
}

// listeningIn returns the sockets that listen in a network namespace, by their TCP port.
func listeningIn(namespace *netns.Namespace) (all map[uint16][]sockdiag.Socket, err error) {
	all = map[uint16][]sockdiag.Socket{}
	err = namespace.Do(func() error {
		list, err := sockdiag.List(unix.IPPROTO_TCP, sockdiag.Listening)
		for _, s := range list {
			all[s.Local.Port()] = append(all[s.Local.Port()], s)
		}
		return err
	})
	return all, err
}

// stranger describes a process that has one of these sockets and is not the proxy; empty: there is none.
func (p *Pod) stranger(sockets []sockdiag.Socket, pids []string) string {
	var inodes []uint32
	for _, socket := range sockets {
		if p.Proxy.UID == nil || socket.UID != *p.Proxy.UID {
			inodes = append(inodes, socket.Inode)
		}
	}
	if len(inodes) == 0 || !p.Proxy.Known() {
		return ""
	}
	proxy := recognizerOf(&p.Proxy)
	for _, d := range descriptorsOf(pids, inodes...) {
		if user, group, name := credentialsOf(d.pid); name != "" && !proxy.is(d.pid, user, group) {
			return fmt.Sprintf("%q of user %d and group %d", name, user, group)
		}
	}
	return ""
}

// A recognizer tells which processes are the proxy, as of the moment at which it was made.
type recognizer struct {
	*api.ProxyIdentity
	container map[string]bool // the processes in its container
}

func recognizerOf(i *api.ProxyIdentity) recognizer {
	r := recognizer{i, map[string]bool{}}
	if i.Cgroup != "" {
		pids, _ := podcgroup.Processes(i.Cgroup) // none: the container has ended
		for _, pid := range pids {
			r.container[pid] = true
		}
	}
	return r
}

// is reports whether a process with these credentials is known as the proxy.
func (r *recognizer) is(pid string, user, group uint32) bool {
	return r.UID != nil && user == *r.UID || r.GID != nil && group == *r.GID || r.container[pid]
}

// proxyFirst sorts the processes of the proxy before all others.
func (p *Pod) proxyFirst(pids []string) (sorted []string) {
	var others []string
	proxy := recognizerOf(&p.Proxy)
	for _, pid := range pids {
		if user, group, name := credentialsOf(pid); name != "" && proxy.is(pid, user, group) {
			sorted = append(sorted, pid)
		} else {
			others = append(others, pid)
		}
	}
	return append(sorted, others...)
}
