// SPDX-License-Identifier: Apache-2.0

// Package mesh keeps the sidecar shortcut at the pods whose connections go through a proxy beside the application: they
// go to the proxy without netfilter.
package mesh

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/node/podcgroup"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/util/wakeup"
)

// A Shortcut is the running sidecar shortcut. Its methods may be called at any time.
type Shortcut struct {
	config   *config
	datapath *Datapath
	log      *slog.Logger
	follower *podcgroup.Follower
	located  wakeup.Signal // pods have started, or their cgroups or network namespaces have changed
	moved    wakeup.Signal // devices or routes of pods have changed

	// work is held while programs and tables change; mu only for a moment, after work.
	work    sync.Mutex
	started bool
	nodes   []netip.Addr
	turn    int // number of calls of Repair
	// rules are how many rows of pods there may be, so that those of a change fit beside the former ones.
	rules struct{ ports, networks int }
	// strangers are network namespaces that have members of the sockmap, and had no pod at the last audit.
	strangers map[uint64]bool
	// watches follow the devices of pods, by the cookies of their network namespaces.
	watches map[uint64]*deviceWatch

	mu      sync.Mutex
	pods    []Pod // those of --mesh-cgroups, and after them those of Kubernetes
	left    []api.MeshLeft
	problem condition.List
	// readers are those to which messages take TCP, with --mesh-sockmap.
	readers Readers
}

// newShortcut returns a shortcut that Start starts. cgroup is that of the Service programs.
//
// Errors: a cgroup that contains the agent's, whose programs would run first.
func newShortcut(c *config, cgroup string, log *slog.Logger) (*Shortcut, error) {
	root, err := filepath.EvalSymlinks(cgroup)
	if err != nil {
		return nil, err
	}
	s := &Shortcut{config: c, datapath: c.datapath, log: log, located: wakeup.NewSignal(), moved: wakeup.NewSignal(), watches: map[uint64]*deviceWatch{}}
	s.follower = podcgroup.NewFollower(podcgroup.FollowerConfig{
		PodCgroups: c.podCgroups(), CgroupRoot: cgroup, Unified: true, Log: log,
		Scanned: func(_ podcgroup.Key, _ podcgroup.Location, changed bool) {
			if changed {
				s.located.Send()
			}
		},
	})
	ports, networks := c.datapath.RuleLimits()
	s.rules.ports, s.rules.networks = ports/2, networks/2
	for _, directory := range c.cgroups {
		real, err := filepath.EvalSymlinks(directory)
		if err == nil && (real == root || strings.HasPrefix(root, real+"/")) {
			return nil, fmt.Errorf("--mesh-cgroups %s is or contains the cgroup %s of the Service programs, which would run first: name the cgroups of pods below it", directory, root)
		}
		p := Pod{MeshPod: api.MeshPod{CgroupDirectory: directory}, key: podcgroup.Key{Directory: directory}, policy: c.defaults.policy(), mapped: true, interfaces: interfaces{c.defaults.ExcludeInterfaces, c.defaults.RerouteInterfaces}}
		p.identify()
		s.pods = append(s.pods, p)
	}
	return s, nil
}

// SetPods sets the pods of Kubernetes that have a proxy, and those that are left alone. When it returns, the programs
// are at those that run, and at no other.
func (s *Shortcut) SetPods(sidecars *Sidecars) {
	s.work.Lock()
	defer s.work.Unlock()
	before := s.Pods()
	next := slices.Clone(before[:len(s.config.cgroups)])
	for i := range sidecars.Pods() {
		next = append(next, s.podOf(&sidecars.Pods()[i], before))
	}
	var problems condition.List
	for _, p := range sidecars.Problems() {
		problems = append(problems, p.Problem.At(p.Object.String()))
	}
	s.mu.Lock()
	s.pods, s.left, s.problem = next, slices.Clone(sidecars.Left()), problems
	s.mu.Unlock()
	if s.started {
		s.find()
		s.removeOthers() // before what holds for them is deleted
		s.repair(false, true)
	}
}

// find follows the pods. When it returns, those that run are found.
func (s *Shortcut) find() {
	var keys []podcgroup.Key
	for _, p := range s.Pods() {
		keys = append(keys, p.key)
	}
	s.follower.Set(keys)
}

// podOf returns the state of a pod of Kubernetes, with what is known of it.
func (s *Shortcut) podOf(sidecar *Sidecar, before []Pod) Pod {
	p := Pod{}
	if i := slices.IndexFunc(before, func(b Pod) bool { return b.UID == sidecar.UID }); i >= 0 {
		p = before[i]
	}
	p.Name, p.UID, p.Native = sidecar.Pod.Namespace+"/"+sidecar.Pod.Name, sidecar.UID, sidecar.Native
	p.key = podcgroup.Key{UID: sidecar.UID}
	if p.policy == nil || !reflect.DeepEqual(&p.sidecar, sidecar) {
		p.sidecar, p.policy = *sidecar, s.config.defaults.policyOf(&sidecar.Rules)
	}
	p.container, p.mapped = sidecar.ProxyContainer, sidecar.UserNamespace
	p.interfaces = interfaces{slices.Concat(s.config.defaults.ExcludeInterfaces, sidecar.ExcludeInterfaces), slices.Concat(s.config.defaults.RerouteInterfaces, sidecar.RerouteInterfaces)}
	return p
}

// SetNodeAddresses sets the node's own addresses, from which the kubelet probes.
func (s *Shortcut) SetNodeAddresses(all []netip.Addr) {
	s.work.Lock()
	defer s.work.Unlock()
	if slices.Equal(all, s.nodes) {
		return
	}
	if err := s.datapath.SetNodeAddresses(all); err != nil {
		s.log.Error("mesh: write the node's addresses", "error", err)
		return
	}
	s.nodes = slices.Clone(all)
}

// Start attaches the programs.
func (s *Shortcut) Start() {
	s.work.Lock()
	defer s.work.Unlock()
	s.started = true
	s.find()
	s.repair(false, true)
	s.removeOthers()
}

// Repair attaches the programs to pods that are new, and removes what is left of those that are gone.
func (s *Shortcut) Repair() {
	s.work.Lock()
	defer s.work.Unlock()
	s.turn++
	if s.repair(false, false) {
		s.removeOthers()
	}
	s.watchReaders()
}

// repair serves all pods, or those that have started or moved, and reports whether a cgroup has changed. changed:
// policies may have.
func (s *Shortcut) repair(onlyNew, changed bool) (cgroups bool) {
	pods, failed := s.Pods(), map[int]error{}
	for i, before := range pods {
		at := s.follower.Location(before.key)
		if onlyNew && before.CgroupID == at.Cgroup && before.NetNSCookie == at.Namespace {
			continue
		}
		pods[i], failed[i] = before.locate(at)
		cgroups = cgroups || pods[i].CgroupID != before.CgroupID
		changed = changed || cgroups || pods[i].NetNSCookie != before.NetNSCookie
		if s.due(i, &pods[i]) {
			var err error
			pods[i].facts, err = s.learn(&pods[i])
			pods[i].facts.missing = err
		}
		failed[i] = errors.Join(failed[i], pods[i].facts.missing)
		pods[i].identify()
		pods[i].facts.devices = s.devicesOf(&pods[i])
		changed = changed || !pods[i].Proxy.Equal(&before.Proxy) || !pods[i].facts.equal(&before.facts)
	}
	s.endWatches(pods)
	if changed {
		refuseUnfit(pods, s.rules.ports, s.rules.networks)
		s.writePolicies(pods)
	}
	for i, err := range failed {
		if pods[i].unfit != "" {
			err = errors.Join(errors.New(pods[i].unfit), err)
		}
		s.serve(&pods[i], err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pods = pods
	return cgroups
}

func (s *Shortcut) writePolicies(pods []Pod) {
	var rows []PodPolicy
	for _, p := range pods {
		if p.CgroupID != 0 {
			rows = append(rows, PodPolicy{Cgroup: p.CgroupID, Namespace: p.NetNSCookie, Policy: p.policyIn()})
		}
	}
	if err := s.datapath.SetPolicies(rows); err != nil {
		s.log.Error("mesh: write what holds for pods", "error", err)
	}
}

// locate returns the pod with its cgroup, and its network namespace once a process shows that. A new cgroup has nothing
// attached.
func (p Pod) locate(at podcgroup.Location) (Pod, error) {
	if p.UID != "" {
		p.CgroupDirectory = at.Directory
	}
	if at.Cgroup == 0 {
		return p.reset(0, p.missing(at.Err)), nil
	}
	if p.CgroupID != at.Cgroup {
		p = p.reset(at.Cgroup, "")
	}
	if p.NetNSCookie != 0 && p.NetNSCookie != at.Namespace { // a new sandbox of the same pod
		p.facts = facts{}
	}
	switch p.NetNSCookie = at.Namespace; {
	case p.NetNSCookie != 0:
		return p, nil
	case errors.Is(at.Err, podcgroup.ErrOnNode):
		return p, fmt.Errorf("the pod of %s is in the node's network namespace: all connections to the node would go to its proxy", p.CgroupDirectory)
	}
	return p, at.Err
}

// missing returns why the pod has no cgroup.
func (p *Pod) missing(err error) string {
	switch {
	case p.UID == "" && (err == nil || errors.Is(err, fs.ErrNotExist)):
		return "the cgroup " + p.CgroupDirectory + " does not exist"
	case err == nil:
		return "no cgroup has its UID in its name"
	}
	return err.Error()
}

// examineEvery is after how many calls of Repair a pod is looked at again.
const examineEvery = 5

// due reports whether a pod is to be looked at: when its network namespace has become known, and then now and again.
func (s *Shortcut) due(i int, p *Pod) bool {
	return p.NetNSCookie != 0 && (!p.facts.known || (s.turn+i)%examineEvery == 0)
}

// serve attaches what is not attached to a pod that is located, or was not because of an error. located is what failed
// before; it does not keep the programs from their work.
func (s *Shortcut) serve(p *Pod, located error) {
	before := p.Error
	if p.CgroupID == 0 {
		return
	}
	err := s.attach(p, p.detached)
	p.Error, p.detached = "", err != nil
	if err := errors.Join(err, s.reroute(p), located); err != nil {
		p.Error = err.Error()
	}
	p.ProxyListeners = len(s.datapath.ListenersOf(p.NetNSCookie, false))
	if p.Error != before && p.Error != "" {
		condition.MeshPodFailed.Log(s.log, "mesh: connections do not go to the proxy", "pod", p.Label(), "error", p.Error)
	}
}

func (s *Shortcut) attach(p *Pod, again bool) error {
	if !p.attached || again {
		if err := s.datapath.AttachCgroup(p.CgroupDirectory); err != nil {
			return err
		}
		p.attached = true
	}
	if p.NetNSCookie == 0 || p.inbound == p.NetNSCookie && !again {
		return nil
	}
	return s.attachInbound(p)
}

// attachInbound attaches the program for connections from other hosts, which go to sockets that listen already.
func (s *Shortcut) attachInbound(p *Pod) error {
	namespace, err := podcgroup.Namespace(p.CgroupDirectory)
	if namespace == nil || err != nil {
		return err
	}
	defer namespace.Close()
	if err := s.adopt(p, namespace); err != nil {
		return fmt.Errorf("find the sockets at which the proxy of %s listens: %w", p.CgroupDirectory, err)
	}
	if err := errors.Join(s.datapath.AttachInbound(p.CgroupID, namespace), s.datapath.AttachLoopback(p.CgroupID, namespace), addApplicationSource(namespace)); err != nil {
		return err
	}
	p.inbound = p.NetNSCookie
	return nil
}

// removeOthers detaches the programs from all cgroups that have no pod to be served.
func (s *Shortcut) removeOthers() {
	attached, err := s.datapath.AttachedPods()
	wanted := s.Pods()
	for id, pod := range attached {
		switch i := slices.IndexFunc(wanted, func(p Pod) bool { return p.CgroupID == id }); {
		case i < 0:
			err = errors.Join(err, s.datapath.Detach(id))
		case len(pod.Rerouted) > 0 && len(wanted[i].interfaces.virtual) == 0:
			err = errors.Join(err, s.datapath.DetachReroute(id))
		}
	}
	if err := errors.Join(err, s.datapath.ForgetGone()); err != nil {
		s.log.Error("mesh: remove programs of pods that are gone", "error", err)
	}
	s.writePolicies(wanted)
}

// Audit attaches again what something detached, and removes what is left over. It returns the pods where programs were
// missing.
func (s *Shortcut) Audit() (repaired []string, err error) {
	s.work.Lock()
	defer s.work.Unlock()
	attached, err := s.datapath.AttachedPods()
	if err != nil {
		return nil, err
	}
	pods := s.Pods()
	for i, p := range pods {
		now := attached[p.CgroupID]
		if p.CgroupID == 0 || now != nil && now.Outbound && (p.NetNSCookie == 0 || slices.Contains(now.Inbound, p.NetNSCookie)) && containsAll(now.Rerouted, p.rerouted) {
			continue
		}
		repaired = append(repaired, "sidecar shortcut at "+p.Label())
		pods[i] = p.reset(0, "")
	}
	s.mu.Lock()
	s.pods = pods
	s.mu.Unlock()
	s.repair(false, true)
	s.removeOthers()
	return repaired, errors.Join(s.datapath.SetNodeAddresses(s.nodes), s.datapath.ForgetHandshakes(), s.forgetMembers())
}

// forgetMembers deletes what is left of the sockets of former pods. The namespace of a new pod is found soon, so one
// that has no pod at two audits has none.
func (s *Shortcut) forgetMembers() error {
	pods, strangers := s.Pods(), map[uint64]bool{}
	err := s.datapath.ForgetMembers(func(netns uint64) bool {
		if slices.ContainsFunc(pods, func(p Pod) bool { return p.NetNSCookie == netns }) {
			return false
		}
		strangers[netns] = true
		return s.strangers[netns]
	})
	s.strangers = strangers
	return err
}
