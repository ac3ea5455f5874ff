// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"context"
	"fmt"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/component"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/report/metrics"
	"beeline.io/beeline/internal/shortcut/mesh/hoststack"
)

// New returns the sidecar shortcut. It is enabled by --mesh-cgroups and --mesh-pods.
func New() *component.Component {
	c := &config{datapath: &Datapath{}}
	programs := c.datapath.Component()
	return &component.Component{Name: programs.Name, BPF: programs, AddFlags: c.addFlags, Complete: c.complete, Options: c.setOptions, New: c.run, CheckObjects: c.checkObjects}
}

// running is a running sidecar shortcut.
type running struct {
	env      component.Env
	shortcut *Shortcut
	sidecars *Sidecars
	changed  bool               // sidecars, since they were last served
	programs *hoststack.Watcher // nil: not looked at
}

func (c *config) run(env component.Env) (*component.Instance, error) {
	if !c.enabled() {
		return &component.Instance{}, nil
	}
	shortcut, err := newShortcut(c, env.Datapath.CgroupPath(), env.Log)
	if err != nil {
		return nil, err
	}
	r := &running{env: env, shortcut: shortcut, sidecars: NewSidecars(env.Node, c.selector), changed: true}
	if reason := c.datapath.NoSockmap; reason != "" {
		condition.MeshSockmapUnavailable.Log(env.Log, reason)
	}
	tasks := []component.Task{{Name: "mesh", Run: shortcut.Run}}
	answers := map[string]component.Answer{api.MeshPath: func(context.Context) (any, error) { return shortcut.Status(), nil }}
	if mode := c.hostStackMode(); mode != hoststack.ModeIgnore {
		r.programs = hoststack.NewWatcher(mode, shortcut.processes, env.Log)
		tasks = append(tasks, component.Task{Name: "mesh host stack", Run: r.programs.Run})
		answers[api.MeshSessionsPath] = func(ctx context.Context) (any, error) { return r.programs.Report(ctx) }
	}
	return &component.Instance{
		Objects: r.objects, Prepare: r.prepare, Run: tasks,
		Start: shortcut.Start, Repair: func() []string { shortcut.Repair(); return nil }, Audit: shortcut.Audit,
		Status: r.status, Conditions: r.conditions, Metrics: r.metrics,
		Answers: answers,
	}, nil
}

// prepare serves pods before they may connect, and leaves the kubelet's probes alone.
func (r *running) prepare(service.Delta) {
	r.shortcut.SetNodeAddresses(r.env.Cluster.LocalAddresses())
	if r.changed {
		r.changed = false
		r.shortcut.SetPods(r.sidecars)
	}
	r.shortcut.SetNames(r.sidecars)
}

// objects selects the pods of --mesh-pods.
func (r *running) objects(changes []service.Change) {
	r.changed = r.sidecars.Apply(changes) || r.changed
}

// checkObjects returns what is wrong with annotations of these pods.
func (c *config) checkObjects(node string, objects []service.Change) []service.ObjectProblem {
	all := NewSidecars(node, c.selector)
	all.Apply(objects)
	return all.Problems()
}

// podsServed returns the numbers of pods whose connections go to a proxy, and of all.
func (r *running) podsServed() (served, all int) {
	for _, p := range r.shortcut.Pods() {
		all++
		if p.Served() {
			served++
		}
	}
	return served, all
}

func (r *running) status(s *api.Status) {
	served, all := r.podsServed()
	state := fmt.Sprintf("%d of %d pods", served, all)
	if counts, err := ReadCounters(r.env.BPFFS); err == nil && counts != nil {
		state += fmt.Sprintf("; connections to proxies: outbound %d, inbound %d; refused without a proxy %d", counts.Outbound, counts.Inbound, counts.Refused)
		if counts.Joined > 0 {
			state += fmt.Sprintf("; messages by sockmap %d, by TCP %d", counts.Skipped, counts.ByTcp)
		}
	}
	if r.programs != nil {
		state += "; " + r.programs.State()
	}
	s.Components = append(s.Components, api.ComponentStatus{Name: "mesh", State: state})
}

func (r *running) conditions() condition.List {
	all := r.shortcut.Conditions()
	if reason := r.shortcut.datapath.NoSockmap; reason != "" {
		all = append(all, condition.MeshSockmapUnavailable.New("%s", reason))
	}
	if r.programs != nil {
		all = append(all, r.programs.Conditions()...)
	}
	return all
}

func (r *running) metrics() ([]api.Metric, error) {
	counts, err := ReadCounters(r.env.BPFFS)
	if err != nil || counts == nil {
		return nil, err
	}
	served, all := r.podsServed()
	b := metrics.NewBatch()
	b.Add("beeline_mesh_pods", float64(served), "state", "served")
	b.Add("beeline_mesh_pods", float64(all-served), "state", "waiting")
	addCounters(b, counts)
	if r.programs != nil {
		r.programs.Metrics(b)
	}
	return b.Metrics, nil
}

// addCounters adds what the programs count.
func addCounters(b *metrics.Batch, counts *Counters) {
	b.Add("beeline_mesh_connections_total", float64(counts.Outbound), "direction", "outbound")
	b.Add("beeline_mesh_connections_total", float64(counts.Inbound), "direction", "inbound")
	b.Add("beeline_mesh_messages_total", float64(counts.Skipped), "path", "sockmap")
	b.Add("beeline_mesh_messages_total", float64(counts.ByTcp), "path", "tcp")
	b.Add("beeline_mesh_sockets_joined_total", float64(counts.Joined))
	b.Add("beeline_mesh_sockets_unserved_total", float64(counts.NotJoined), "reason", "table-full")
	b.Add("beeline_mesh_sockets_unserved_total", float64(counts.Foreign), "reason", "other-sockmap")
	b.Add("beeline_mesh_sockets_stuck_total", float64(counts.Stuck))
	b.Add("beeline_mesh_dns_total", float64(counts.Dns))
	b.Add("beeline_mesh_refused_total", float64(counts.Refused))
	b.Add("beeline_mesh_unnamed_total", float64(counts.Unnamed))
	b.Add("beeline_mesh_listeners_unserved_total", float64(counts.Listeners))
}
