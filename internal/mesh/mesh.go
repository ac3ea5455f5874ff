// SPDX-License-Identifier: Apache-2.0

// Package mesh keeps the sidecar shortcut at the pods whose connections go through a proxy beside the application.
package mesh

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/condition"
	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/netns"
)

// Config says which pods have a proxy, and which connections it gets.
type Config struct {
	// Cgroups are directories of cgroup v2, each of a pod: the application and the proxy are in it or below it.
	// They may come and go.
	Cgroups     []string
	InboundPort uint16
	Exclusions  datapath.MeshExclusions
	Log         *slog.Logger
}

// A Shortcut is the running sidecar shortcut. Start, Repair and Audit are called one at a time, the other methods at
// any time.
type Shortcut struct {
	datapath *datapath.Datapath
	config   Config

	mu   sync.Mutex
	pods map[string]Pod // by directory
}

// A Pod is the state of one of Config.Cgroups.
type Pod struct {
	Directory string `json:"directory"`
	// Cgroup is the id of the cgroup; 0: there is none.
	Cgroup uint64 `json:"cgroup,omitempty"`
	// Namespace is the cookie of its network namespace; 0: the cgroup has had no process yet.
	Namespace uint64 `json:"namespace,omitempty"`
	// Listeners is the number of the proxy's sockets for inbound connections.
	Listeners int `json:"listeners"`
	// Failed is why connections do not go to the proxy; empty: they do.
	Failed string `json:"failed,omitempty"`
}

// New returns a shortcut that Start starts.
//
// Errors: a cgroup that contains the agent's, whose programs would run first.
func New(d *datapath.Datapath, c Config) (*Shortcut, error) {
	root, err := filepath.EvalSymlinks(d.CgroupPath())
	if err != nil {
		return nil, err
	}
	for _, directory := range c.Cgroups {
		real, err := filepath.EvalSymlinks(directory)
		if err == nil && (real == root || strings.HasPrefix(root, real+"/")) {
			return nil, fmt.Errorf("--mesh-cgroups %s is or contains the cgroup %s of the Service programs, which would run first: name the cgroups of pods below it", directory, root)
		}
	}
	return &Shortcut{datapath: d, config: c, pods: map[string]Pod{}}, nil
}

// Start attaches the programs.
func (s *Shortcut) Start() {
	if err := s.datapath.SetMeshExclusions(s.config.Exclusions); err != nil {
		s.config.Log.Error("mesh: write the exclusions", "error", err)
	}
	s.Repair()
}

// Repair attaches the programs to pods that are new, and removes what is left of those that are gone.
func (s *Shortcut) Repair() {
	changed := false
	for _, directory := range s.config.Cgroups {
		before := s.pod(directory)
		now := s.serve(before)
		now.Listeners = len(s.datapath.MeshListenersOf(now.Namespace))
		changed = changed || now.Cgroup != before.Cgroup
		if now.Failed != before.Failed && now.Failed != "" {
			s.config.Log.Error("mesh: connections do not go to the proxy", "cgroup", directory, "error", now.Failed)
		}
		s.mu.Lock()
		s.pods[directory] = now
		s.mu.Unlock()
	}
	if changed {
		s.removeOthers()
	}
}

func (s *Shortcut) pod(directory string) Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pods[directory]
	p.Directory = directory
	return p
}

// serve attaches what is not attached, and returns the state.
func (s *Shortcut) serve(p Pod) Pod {
	var st unix.Stat_t
	if err := unix.Stat(p.Directory, &st); err != nil {
		return Pod{Directory: p.Directory, Failed: failedStat(p.Directory, err)}
	}
	if p.Cgroup != st.Ino || p.Failed != "" {
		p = Pod{Directory: p.Directory}
		if err := s.datapath.AttachMesh(p.Directory); err != nil {
			p.Failed = err.Error()
			return p
		}
		p.Cgroup = st.Ino
	}
	if p.Namespace != 0 {
		return p
	}
	cookie, err := s.serveInbound(p)
	if p.Namespace = cookie; err != nil {
		p.Failed = err.Error()
	}
	return p
}

func failedStat(directory string, err error) string {
	if errors.Is(err, fs.ErrNotExist) {
		return "the cgroup " + directory + " does not exist"
	}
	return fmt.Sprintf("stat %s: %v", directory, err)
}

// serveInbound attaches the program for connections from other hosts, and returns the cookie of the pod's network
// namespace; 0 if no process of the pod shows it yet.
func (s *Shortcut) serveInbound(p Pod) (uint64, error) {
	namespace, err := namespaceOf(p.Directory)
	if namespace == nil || err != nil {
		return 0, err
	}
	defer namespace.Close()
	own, err := netns.Current()
	if err != nil {
		return 0, err
	}
	defer own.Close()
	if own.Inode == namespace.Inode {
		return 0, fmt.Errorf("the pod of %s is in the node's network namespace: all connections to the node would go to its proxy", p.Directory)
	}
	cookie, err := namespace.Cookie()
	if err != nil {
		return 0, err
	}
	if err := s.adopt(p.Directory, cookie); err != nil {
		return 0, fmt.Errorf("find the sockets at which the proxy of %s listens: %w", p.Directory, err)
	}
	return cookie, s.datapath.AttachMeshInbound(p.Cgroup, namespace)
}

// namespaceOf opens the network namespace of the processes of a cgroup; nil if there is none.
func namespaceOf(directory string) (*netns.Namespace, error) {
	pids, err := processes(directory)
	for _, pid := range pids {
		n, err := netns.Open("/proc/" + pid + "/ns/net")
		if errors.Is(err, netns.ErrVanished) {
			continue
		}
		return n, err
	}
	return nil, err
}

// processes lists the processes of a cgroup and those below it.
func processes(directory string) (pids []string, err error) {
	err = filepath.WalkDir(directory, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || err == nil && !e.IsDir() {
			return nil
		}
		if err != nil {
			return err
		}
		text, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
			return err
		}
		pids = append(pids, strings.Fields(string(text))...)
		return nil
	})
	return pids, err
}

// removeOthers detaches the programs from all cgroups that are not configured or gone.
func (s *Shortcut) removeOthers() {
	attached, err := s.datapath.MeshPods()
	wanted := s.Pods()
	for id := range attached {
		if !slices.ContainsFunc(wanted, func(p Pod) bool { return p.Cgroup == id }) {
			err = errors.Join(err, s.datapath.DetachMesh(id))
		}
	}
	if err := errors.Join(err, s.datapath.ForgetMesh()); err != nil {
		s.config.Log.Error("mesh: remove programs of pods that are gone", "error", err)
	}
}

// Audit attaches again what something detached, and removes what is left over. It returns the cgroups where programs
// were missing.
func (s *Shortcut) Audit() (repaired []string, err error) {
	attached, err := s.datapath.MeshPods()
	if err != nil {
		return nil, err
	}
	for _, p := range s.Pods() {
		now := attached[p.Cgroup]
		if p.Cgroup == 0 || now != nil && now.Outbound && (p.Namespace == 0 || slices.Contains(now.Inbound, p.Namespace)) {
			continue
		}
		repaired = append(repaired, "sidecar shortcut at "+p.Directory)
		s.mu.Lock()
		delete(s.pods, p.Directory)
		s.mu.Unlock()
	}
	s.Repair()
	s.removeOthers()
	return repaired, errors.Join(s.datapath.SetMeshExclusions(s.config.Exclusions), s.datapath.ForgetMeshHandshakes())
}

// Pods returns the state of all configured pods.
func (s *Shortcut) Pods() (all []Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, directory := range s.config.Cgroups {
		if p, known := s.pods[directory]; known {
			all = append(all, p)
		}
	}
	return all
}

// Conditions returns what is wrong with pods. A cgroup that does not exist is not: the pod may not run.
func (s *Shortcut) Conditions() (all condition.List) {
	for _, p := range s.Pods() {
		switch {
		case p.Cgroup != 0 && p.Failed != "":
			all = append(all, condition.MeshPodFailed.New("%s", p.Failed).At(p.Directory))
		case p.Namespace != 0 && p.Listeners == 0:
			all = append(all, condition.MeshProxyMissing.New("the proxy of %s does not listen at port %d", p.Directory, s.config.InboundPort).At(p.Directory))
		}
	}
	return all
}
