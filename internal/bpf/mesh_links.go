// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"beeline.io/beeline/internal/node/netns"
)

// The links of the sidecar shortcut are pinned as links/mesh-CGROUP-HOOK, with the id of the pod's cgroup. The hooks in
// its network namespace are inbound_COOKIE, loopback_COOKIE at lo, and reroute_COOKIE_INDEX at other devices.

const (
	meshInbound  = "inbound_"
	meshLoopback = "loopback_"
	meshReroute  = "reroute_"
)

// A meshLink is a pinned link at a pod.
type meshLink struct {
	path   string
	cgroup uint64
	hook   string
	// netns is the cookie of the namespace; 0: the link is at the cgroup. device is the index of a device in it;
	// 0: the link is at the namespace itself, or at lo.
	netns    uint64
	device   int
	loopback bool
	program  ebpf.ProgramID
	// detached: the cgroup or namespace is gone.
	detached bool
}

func meshLinkPath(bpffs string, cgroup uint64, hook string) string {
	return filepath.Join(bpffs, "links", fmt.Sprintf("%s-%d-%s", MeshComponent, cgroup, hook))
}

// parseMeshLink is the inverse of meshLinkPath.
func parseMeshLink(path string) (l meshLink, ok bool) {
	parts := strings.Split(filepath.Base(path), "-")
	if len(parts) != 3 || parts[0] != MeshComponent {
		return l, false
	}
	cgroup, err := strconv.ParseUint(parts[1], 10, 64)
	if err != nil {
		return l, false
	}
	l = meshLink{path: path, cgroup: cgroup, hook: parts[2]}
	cookie, inbound := strings.CutPrefix(l.hook, meshInbound)
	if !inbound {
		cookie, l.loopback = strings.CutPrefix(l.hook, meshLoopback)
	}
	if inbound || l.loopback {
		l.netns, err = strconv.ParseUint(cookie, 10, 64)
		return l, err == nil
	}
	if at, reroute := strings.CutPrefix(l.hook, meshReroute); reroute {
		n, err := fmt.Sscanf(at, "%d_%d", &l.netns, &l.device)
		return l, n == 2 && err == nil
	}
	return l, slices.ContainsFunc(meshHooks, func(h CgroupHook) bool { return h.Name == l.hook })
}

// meshLinks lists the pinned links at pods.
func meshLinks(bpffs string) (all []meshLink, err error) {
	wanted := func(path string) bool { _, ok := parseMeshLink(path); return ok }
	err = readPinnedLinks(bpffs, MeshComponent, wanted, func(path string, info *link.Info) {
		l, _ := parseMeshLink(path)
		l.program, l.detached = info.Program, !linkAttached(info)
		all = append(all, l)
	})
	return all, err
}

// attachedMesh finds the programs at pods.
func attachedMesh(bpffs string) (all []attachedProgram, err error) {
	links, err := meshLinks(bpffs)
	for _, l := range links {
		all = append(all, attachedProgram{l.program, fmt.Sprintf("%s of cgroup %d", l.hook, l.cgroup)})
	}
	return all, err
}

// replaceMesh replaces the programs of an earlier agent at pods.
func (d *Datapath) replaceMesh() error {
	if d.options.Mesh.Sockmap {
		if err := d.attachMeshMessages(); err != nil {
			return err
		}
	}
	links, err := meshLinks(d.options.BPFFS)
	if err != nil {
		return err
	}
	for _, l := range links {
		if err := d.replaceMeshLink(&l); err != nil {
			return fmt.Errorf("replace %s of cgroup %d: %w", l.hook, l.cgroup, err)
		}
	}
	if !d.options.Mesh.Sockmap { // sockets no longer join
		return detachMeshRead(d.options.BPFFS)
	}
	return nil
}

func (d *Datapath) replaceMeshLink(l *meshLink) error {
	if l.detached {
		return l.remove()
	}
	pinned, err := link.LoadPinnedLink(l.path, nil)
	if err != nil {
		return err
	}
	defer pinned.Close()
	if l.netns == 0 {
		i := slices.IndexFunc(meshHooks, func(h CgroupHook) bool { return h.Name == l.hook })
		return pinned.Update(d.program(meshHooks[i].Program))
	}
	if l.loopback {
		return pinned.Update(d.program(MeshProgBeelineMeshLoopback))
	}
	load := d.loadMeshInbound
	if l.device != 0 {
		load = d.loadMeshReroute
	}
	program, err := load(l.netns)
	if err != nil {
		return err
	}
	defer program.Close()
	return pinned.Update(program)
}

// remove detaches the program.
func (l *meshLink) remove() error {
	pinned, err := link.LoadPinnedLink(l.path, nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if l.detached { // the kernel refuses to detach it again
		return errors.Join(pinned.Unpin(), pinned.Close())
	}
	return takeDown(pinned)
}

// detachMesh detaches the programs from all pods.
func detachMesh(bpffs string) error {
	links, err := meshLinks(bpffs)
	if err != nil {
		return err
	}
	return errors.Join(removeMeshLinks(links), detachMeshRead(bpffs))
}

// removeMeshLinks removes what redirects first, in reverse order of attachment.
func removeMeshLinks(links []meshLink) error {
	slices.SortFunc(links, func(a, b meshLink) int { return b.rank() - a.rank() })
	for _, l := range links {
		if err := l.remove(); err != nil {
			return fmt.Errorf("detach %s from cgroup %d: %w", l.hook, l.cgroup, err)
		}
	}
	return removeMeshRoutes(links)
}

// rank is the position in the order of attachment.
func (l *meshLink) rank() int {
	if l.netns != 0 {
		return len(meshHooks)
	}
	return slices.IndexFunc(meshHooks, func(h CgroupHook) bool { return h.Name == l.hook })
}

// A MeshPod is a pod with programs of the sidecar shortcut.
type MeshPod struct {
	Cgroup uint64 // id: the inode of its directory
	// Outbound: all programs are at its cgroup.
	Outbound bool
	// Inbound are the cookies of the network namespaces with a program.
	Inbound []uint64
	// Rerouted are the indexes of devices with a program.
	Rerouted []int
}

// MeshPods lists the pods with programs, by the id of their cgroup. Those that are gone are not among them.
func (d *Datapath) MeshPods() (map[uint64]*MeshPod, error) {
	links, err := meshLinks(d.options.BPFFS)
	all, hooks := map[uint64]*MeshPod{}, map[uint64]int{}
	for _, l := range links {
		if l.detached {
			continue
		}
		p := all[l.cgroup]
		if p == nil {
			p = &MeshPod{Cgroup: l.cgroup}
			all[l.cgroup] = p
		}
		switch {
		case l.loopback:
			continue
		case l.device != 0:
			p.Rerouted = append(p.Rerouted, l.device)
			continue
		case l.netns != 0:
			p.Inbound = append(p.Inbound, l.netns)
			continue
		}
		hooks[l.cgroup]++
		p.Outbound = hooks[l.cgroup] == len(meshHooks)
	}
	return all, err
}

// AttachMesh attaches the programs to the cgroup of a pod, unless they are there.
func (d *Datapath) AttachMesh(directory string) error {
	id, err := cgroupID(directory)
	if err != nil {
		return err
	}
	there := func(info *link.Info) bool { return info.Cgroup().CgroupId == id }
	for _, h := range meshHooks {
		program := d.program(h.Program)
		err := d.attachPinned(meshLinkPath(d.options.BPFFS, id, h.Name), program, there, func() (link.Link, error) {
			return link.AttachCgroup(link.CgroupOptions{Path: directory, Attach: h.Attach, Program: program})
		})
		if err != nil {
			return fmt.Errorf("attach %s to %s: %w", h.Name, directory, err)
		}
	}
	return nil
}

// AttachMeshInbound attaches the program for connections from other hosts to the network namespace of a pod.
func (d *Datapath) AttachMeshInbound(cgroup uint64, namespace *netns.Namespace) error {
	cookie, err := namespace.Cookie()
	if err != nil {
		return err
	}
	program, err := d.loadMeshInbound(cookie)
	if err != nil {
		return err
	}
	defer program.Close()
	there := func(info *link.Info) bool { return uint64(info.NetNs().NetnsInode) == namespace.Inode }
	return d.attachPinned(meshLinkPath(d.options.BPFFS, cgroup, meshInbound+strconv.FormatUint(cookie, 10)), program, there, func() (link.Link, error) {
		return link.AttachNetNs(namespace.FD(), program)
	})
}

// AttachMeshLoopback attaches the program by which a socket whose messages skip TCP sends a RST if it is closed with
// messages unread, to the device lo of the network namespace of a pod. It does nothing if messages do not skip TCP.
func (d *Datapath) AttachMeshLoopback(cgroup uint64, namespace *netns.Namespace) error {
	if !d.MessagesSkipTCP() {
		return nil
	}
	cookie, err := namespace.Cookie()
	if err != nil {
		return err
	}
	program := d.program(MeshProgBeelineMeshLoopback)
	there := func(info *link.Info) bool { return info.TCX().Ifindex == loopbackIndex }
	return d.attachPinned(meshLinkPath(d.options.BPFFS, cgroup, meshLoopback+strconv.FormatUint(cookie, 10)), program, there, func() (l link.Link, err error) {
		err = namespace.Do(func() (err error) {
			l, err = link.AttachTCX(link.TCXOptions{Interface: loopbackIndex, Program: program, Attach: ebpf.AttachTCXEgress})
			return err
		})
		return l, err
	})
}

// DetachMesh detaches all programs of a pod, by the id of its cgroup.
func (d *Datapath) DetachMesh(cgroup uint64) error {
	return d.removeMesh(func(l meshLink) bool { return l.cgroup == cgroup })
}

// ForgetMesh removes the pins of links whose cgroup or namespace is gone.
func (d *Datapath) ForgetMesh() error {
	return d.removeMesh(func(l meshLink) bool { return l.detached })
}

func (d *Datapath) removeMesh(chosen func(meshLink) bool) error {
	links, err := meshLinks(d.options.BPFFS)
	if err != nil {
		return err
	}
	return removeMeshLinks(slices.DeleteFunc(links, func(l meshLink) bool { return !chosen(l) }))
}

// loadMeshInbound loads the program for a network namespace.
func (d *Datapath) loadMeshInbound(cookie uint64) (*ebpf.Program, error) {
	return d.loadMeshAt(cookie, LoadMeshInbound, MeshInboundProgBeelineMeshInbound)
}

// loadMeshAt loads a program that has the cookie of its network namespace.
func (d *Datapath) loadMeshAt(cookie uint64, load func() (*ebpf.CollectionSpec, error), program string) (*ebpf.Program, error) {
	spec, err := load()
	if err != nil {
		return nil, err
	}
	if err := d.prepareMaps(spec); err != nil {
		return nil, err
	}
	if err := spec.Variables[MeshInboundVarMeshNetns].Set(cookie); err != nil {
		return nil, err
	}
	loaded, err := d.loadObjects([]*ebpf.CollectionSpec{spec})
	return loaded[program], err
}
