// SPDX-License-Identifier: Apache-2.0

// Package lab builds small clusters out of network namespaces and cgroups: two nodes with three pods each, a
// client outside and a routing fabric between them, in both address families. Each host is a namespace, each
// pod's processes run in a cgroup where the kubelet would put them, and each node has a BPF file system of its
// own, so that agents of several nodes run side by side on one kernel.
//
// A lab belongs to its name, not to the process that created it: [Open] finds it again, [Lab.Down] removes it
// even after a crash. Labs with different names do not see each other, although their addresses are the same.
//
// A program that uses sockets or servers of a lab calls [Main] first.
package lab

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

var (
	// ErrNotFound is returned for a lab that does not exist.
	ErrNotFound = errors.New("no such lab")
	// ErrIncomplete is returned by Open for a lab that is incomplete or damaged. Up creates it again.
	ErrIncomplete = errors.New("lab is incomplete")
)

// Config configures Up. Tests need only the zero value.
type Config struct {
	// Name of the lab: lower-case letters, digits and hyphens, at most 24;
	// if empty, a random one that begins with "t".
	Name string
	// CgroupLayout is LayoutSystemd if empty.
	CgroupLayout CgroupLayout
	Shape
	// Temporary ties the lab to this process: its servers end with it, and the next temporary lab on the
	// machine removes what it has left.
	Temporary bool
	// Warn is called with what an earlier run left and could not be removed; if nil, it is printed to
	// stderr.
	Warn func(error)

	// For tests: ownCgroup2 mounts a cgroup2 hierarchy as on a machine with
	// only v1, progress is called after each step.
	ownCgroup2 bool
	progress   func()
}

// Lab is a complete lab. Its methods are safe for concurrent use.
type Lab struct {
	Name         string
	CgroupLayout CgroupLayout
	Shape
	Created   time.Time
	Temporary bool
	// Reused is set by Up if it found the lab complete and changed nothing.
	Reused bool
	// CgroupRoot is the directory of all cgroups of the lab.
	CgroupRoot string

	hosts []*Host
}

// Up creates a lab. If it exists and is complete, Up returns it unchanged, with Reused set; one that is
// incomplete or damaged is removed and created again. On error nothing remains.
func Up(cfg Config) (*Lab, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("lab %s: network namespaces and cgroups need root: %w", cfg.Name, os.ErrPermission)
	}
	if cfg.Temporary {
		// Leftovers of others that cannot be removed do not affect this lab.
		if err := Sweep(); err != nil {
			cfg.Warn(fmt.Errorf("removing what an earlier run left: %w", err))
		}
	}
	lock, err := lockLab(cfg.Name, true, true)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	l, err := Open(cfg.Name)
	if err == nil {
		if l.CgroupLayout != cfg.CgroupLayout {
			return nil, fmt.Errorf("lab %s is up with cgroup layout %s: take it down before it can be made with %s",
				l.Name, l.CgroupLayout, cfg.CgroupLayout)
		}
		if l.Shape != cfg.Shape {
			return nil, fmt.Errorf("lab %s is up with %s: take it down before it can be made with %s", l.Name, l.Shape, cfg.Shape)
		}
		l.Reused = true
		return l, nil
	}
	if err := removeContents(cfg.Name); err != nil {
		return nil, fmt.Errorf("lab %s: removing what is left of an earlier one: %w", cfg.Name, err)
	}
	if err := build(cfg); err != nil {
		err = fmt.Errorf("lab %s: %w", cfg.Name, err)
		return nil, errors.Join(err, remove(cfg.Name))
	}
	return Open(cfg.Name)
}

var validName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,22}[a-z0-9])?$`)

func (cfg *Config) complete() error {
	if cfg.Name == "" {
		random := make([]byte, 5)
		rand.Read(random)
		cfg.Name = "t" + hex.EncodeToString(random)
	}
	if cfg.CgroupLayout == "" {
		cfg.CgroupLayout = LayoutSystemd
	}
	if cfg.Warn == nil {
		cfg.Warn = func(err error) { fmt.Fprintln(os.Stderr, "warning:", err) }
	}
	if cfg.progress == nil {
		cfg.progress = func() {}
	}
	if cfg.CgroupLayout != LayoutSystemd && cfg.CgroupLayout != LayoutCgroupfs {
		return fmt.Errorf("lab %s: unknown cgroup layout %q: use %s or %s", cfg.Name, cfg.CgroupLayout, LayoutSystemd, LayoutCgroupfs)
	}
	if err := cfg.Shape.complete(); err != nil {
		return fmt.Errorf("lab %s: %w", cfg.Name, err)
	}
	return checkName(cfg.Name)
}

func checkName(name string) error {
	if !validName.MatchString(name) {
		return fmt.Errorf("lab name %q: use 1 to 24 lower-case letters, digits and hyphens, with no hyphen at either end", name)
	}
	return nil
}

// build creates everything below an empty, locked state directory.
func build(cfg Config) error {
	s := state{Layout: cfg.CgroupLayout, Shape: cfg.Shape, Created: time.Now().UTC()}
	var err error
	if s.BootID, err = bootID(); err != nil {
		return err
	}
	if s.Cgroup2, err = findCgroup2(); err != nil {
		return err
	}
	ownMount := s.Cgroup2 == "" || cfg.ownCgroup2
	if ownMount {
		s.Cgroup2 = filepath.Join(stateDir(cfg.Name), "cgroup2")
	}
	if cfg.Temporary {
		owner, err := processOf(os.Getpid())
		if err != nil {
			return err
		}
		s.Owner = &owner
	}
	if err := s.write(cfg.Name); err != nil {
		return err
	}
	cfg.progress()
	if err := shareNetNSDir(); err != nil {
		return err
	}
	if ownMount {
		if err := mountCgroup2(s.Cgroup2); err != nil {
			return err
		}
	}
	p := plan(s.Shape)
	l := assemble(cfg.Name, s, p)
	for i, h := range l.hosts {
		if err := h.create(p.hosts[i]); err != nil {
			return fmt.Errorf("host %s: %w", h.Name, err)
		}
		cfg.progress()
	}
	if err := applyNetwork(cfg.Name, p, cfg.progress); err != nil {
		return err
	}
	if err := l.startTunnels(p); err != nil {
		return err
	}
	s.Complete = true
	return s.write(cfg.Name)
}

// create creates the host's directories, cgroup and namespace.
func (h *Host) create(p *hostPlan) error {
	if err := os.MkdirAll(h.Dir, 0o755); err != nil {
		return err
	}
	if h.Role == RoleNode {
		if err := mountBPF(h.BPFFS); err != nil {
			return err
		}
		if err := os.Mkdir(h.RunDir, 0o755); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(h.Cgroup, 0o755); err != nil {
		return fmt.Errorf("creating its cgroup: %w", err)
	}
	return createHost(h.lab.Name, p)
}

// Open returns a lab that is up. The error is ErrNotFound or ErrIncomplete if it is missing or incomplete.
func Open(name string) (*Lab, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	if _, err := os.Stat(stateDir(name)); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("lab %s: %w: make it with `beeline-lab up --name %s`", name, ErrNotFound, name)
	}
	s, err := readState(name)
	if err != nil {
		return nil, fmt.Errorf("lab %s: %w: %w", name, ErrIncomplete, err)
	}
	l := assemble(name, s, plan(s.Shape))
	if err := l.check(s); err != nil {
		return nil, fmt.Errorf("lab %s: %w (%w): `beeline-lab up --name %s` creates it again", name, ErrIncomplete, err, name)
	}
	return l, nil
}

// assemble names everything in the lab, without touching any of it.
func assemble(name string, s state, p *topologyPlan) *Lab {
	l := &Lab{
		Name:         name,
		CgroupLayout: s.Layout,
		Shape:        s.Shape,
		Created:      s.Created,
		Temporary:    s.Owner != nil,
		CgroupRoot:   labCgroup(s.Cgroup2, name),
	}
	for _, h := range p.hosts {
		host := &Host{
			Name: h.name, Role: h.role, Addr4: h.addr4, Addr6: h.addr6,
			NetNS:  netnsPath(name, h.name),
			Cgroup: hostCgroup(l.CgroupRoot, s.Layout, name, h),
			Dir:    filepath.Join(stateDir(name), h.name),
			Node:   l.Host(h.node),
			lab:    l,
		}
		if h.role == RoleNode {
			host.CgroupRoot = filepath.Join(l.CgroupRoot, h.name)
			host.BPFFS = filepath.Join(host.Dir, "bpf")
			host.RunDir = filepath.Join(host.Dir, "run")
		}
		l.hosts = append(l.hosts, host)
	}
	return l
}

// Host returns the host of that name, nil if there is none.
func (l *Lab) Host(name string) *Host {
	for _, h := range l.hosts {
		if h.Name == name {
			return h
		}
	}
	return nil
}

// Hosts returns all hosts: each node followed by its pods, client, fabric.
func (l *Lab) Hosts() []*Host { return l.hosts }

// Pods returns the pods of the whole lab.
func (l *Lab) Pods() []*Host { return l.withRole(RolePod) }

// Nodes returns the nodes.
func (l *Lab) Nodes() []*Host { return l.withRole(RoleNode) }

func (l *Lab) withRole(role Role) []*Host {
	var list []*Host
	for _, h := range l.hosts {
		if h.Role == role {
			list = append(list, h)
		}
	}
	return list
}
