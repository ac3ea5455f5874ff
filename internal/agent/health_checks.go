// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/offline"
	"beeline.io/beeline/internal/part/healthcheck"
	"beeline.io/beeline/internal/report/condition"
)

func (a *Agent) newProber() (*healthcheck.Prober, error) {
	mark := uint32(bpf.AgentMark)
	checks, err := bpf.NewDSRChecks(a.datapath)
	if err != nil {
		return nil, err
	}
	return healthcheck.New(healthcheck.Options{Dial: healthcheck.Direct(mark), Through: healthcheck.Through(mark, dsrChecks{checks})}), nil
}

// dsrChecks makes the datapath encapsulate the packets of health checks. Without an edge no check needs that
// (service.Config.Edge).
type dsrChecks struct{ *bpf.DSRChecks }

func (d dsrChecks) Begin(cookie uint64, via service.Via) error {
	return d.DSRChecks.Begin(cookie, bpf.DSRCheck{
		DSR: codec.DSRKind(via.DSR), Connected: via.To, Frontend: via.Frontend, Backend: via.Backend,
	})
}

// wantHealth starts probes of the cluster's targets, and adds their known states to a change.
func (a *Agent) wantHealth(delta *service.Delta) {
	start := func(service.Target) healthcheck.Start { return healthcheck.Unknown }
	if !a.synced && bpf.Attached(a.config.BPFFS) {
		start = a.earlierHealth()
	}
	a.prober.SetTargets(slices.Collect(a.cluster.Targets()), start)
	fails := map[service.Target]bool{}
	for target, state := range a.prober.States() {
		fails[target] = !state.Up
	}
	known := a.cluster.SetHealth(fails)
	maps.Copy(delta.Plans, known.Plans)
	delta.Resolved += known.Resolved
	a.mu.Lock()
	defer a.mu.Unlock()
	a.checked = maps.Collect(a.cluster.Checked())
}

// earlierHealth reads from the tables which backends an earlier agent found healthy, so that a restart neither
// removes nor restores a backend before its first probe.
func (a *Agent) earlierHealth() func(service.Target) healthcheck.Start {
	tables, err := offline.ReadTables(a.datapath.Tables)
	if err != nil {
		a.log.Error("cannot read from the tables which backends were healthy; all count as healthy until probed", "error", err)
		return func(service.Target) healthcheck.Start { return healthcheck.Unknown }
	}
	type member struct {
		service service.Ref
		address string
	}
	served := map[member]bool{}
	for i := range tables.Services {
		s := &tables.Services[i]
		for _, f := range s.Frontends {
			for _, d := range []api.Decision{f.FromPods, f.FromNode, f.FromOutside, {Backends: f.RetainedBackends}} {
				for _, b := range d.Backends {
					served[member{s.Ref(), b.Address}] = true
				}
			}
		}
	}
	well := map[service.Target]bool{}
	for ref, all := range a.cluster.Checked() {
		for _, c := range all {
			well[c.Target] = well[c.Target] || served[member{ref, c.Endpoint.String()}]
		}
	}
	return func(t service.Target) healthcheck.Start {
		if well[t] {
			return healthcheck.Served
		}
		return healthcheck.Unserved
	}
}

// maxServices is the maximum number of Services that a log line names.
const maxServices = 8

// takeHealth applies the prober's changes to the tables.
func (a *Agent) takeHealth(changes []healthcheck.Change) {
	fails := map[service.Target]bool{}
	slices.SortFunc(changes, func(x, y healthcheck.Change) int { return x.Target.Addr.Compare(y.Target.Addr) })
	for _, c := range changes {
		// The change may be from an earlier period in which this target was probed.
		state, asked := a.prober.State(c.Target)
		if !asked {
			continue
		}
		fails[c.Target] = !state.Up
		a.logHealth(c.Target, state)
	}
	a.program(a.cluster.SetHealth(fails))
}

func (a *Agent) logHealth(t service.Target, state healthcheck.State) {
	var names []string
	users := a.cluster.TargetServices(t)
	for _, ref := range users[:min(len(users), maxServices)] {
		names = append(names, ref.Namespace+"/"+ref.Name)
	}
	if len(users) > maxServices {
		names = append(names, "...")
	}
	services := strings.Join(names, ", ")
	if state.Up {
		a.log.Info("a backend passes its health check", "asked", t.Addr, "check", t.Probe.Kind, "services", services)
		return
	}
	condition.BackendsDown.Log(a.log, "a backend fails its health check", "asked", t.Addr, "check", t.Probe.Kind, "services", services, "why", state.Why)
}

// checks returns the health check results of one Service.
func (a *Agent) checks(ref service.Ref) *api.Health {
	a.mu.Lock()
	all := a.checked[ref]
	a.mu.Unlock()
	if len(all) == 0 {
		return nil
	}
	h := &api.Health{Check: all[0].Target.Probe.String()}
	for _, c := range all {
		if state, ok := a.prober.State(c.Target); ok {
			h.Backends = append(h.Backends, backendHealth(ref, c, state))
		}
	}
	return h
}

func backendHealth(ref service.Ref, c service.CheckedEndpoint, state healthcheck.State) api.BackendHealth {
	return api.BackendHealth{
		Service: ref.Namespace + "/" + ref.Name, Address: c.Endpoint, Protocol: c.Protocol, CheckAddress: c.Target.Addr, ProbePath: c.Target.Via.String(),
		Up: state.Up, CheckPending: !state.Probed, Since: state.Since, LastProbe: state.Last, Why: state.Why,
	}
}

// healthStatus returns the status of all probed backends; nil without health checks.
func (a *Agent) healthStatus() *api.HealthStatus {
	a.mu.Lock()
	checked := a.checked
	a.mu.Unlock()
	h := &api.HealthStatus{Counters: a.prober.Counters(), Services: map[string]int{}}
	if len(checked) == 0 && h.Counters.Probes == 0 {
		return nil
	}
	states := a.prober.States()
	for ref, all := range checked {
		for _, c := range all {
			state, ok := states[c.Target]
			if !ok {
				continue
			}
			h.Backends++
			h.Services[ref.Namespace+"/"+ref.Name]++
			if !state.Up {
				h.Down = append(h.Down, backendHealth(ref, c, state))
			}
		}
	}
	h.Targets = len(states)
	slices.SortFunc(h.Down, func(x, y api.BackendHealth) int {
		return cmp.Or(strings.Compare(x.Service, y.Service), x.Address.Compare(y.Address), cmp.Compare(x.Protocol, y.Protocol))
	})
	return h
}
