// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/observe"
	"beeline.io/beeline/internal/probe"
	"beeline.io/beeline/internal/service"
)

func (a *Agent) newProber() *probe.Prober {
	return probe.New(probe.Options{Dial: probe.Direct(uint32(datapath.AgentMark))})
}

// wantHealth has the table's targets asked, and adds to a change of the table what
// is known of them already.
func (a *Agent) wantHealth(delta *service.Delta) {
	start := func(service.Target) probe.Start { return probe.Unknown }
	if !a.synced && datapath.Attached(a.config.BPFFS) {
		start = a.earlierHealth()
	}
	a.prober.Want(slices.Collect(a.table.Targets()), start)
	fails := map[service.Target]bool{}
	for target, state := range a.prober.States() {
		fails[target] = !state.Up
	}
	known := a.table.SetHealth(fails)
	maps.Copy(delta.Plans, known.Plans)
	delta.Resolved += known.Resolved
	a.mu.Lock()
	defer a.mu.Unlock()
	a.checked = maps.Collect(a.table.Checked())
}

// earlierHealth tells by the tables whom an earlier agent has found well: a restart
// neither takes a backend out nor brings one back before it has been asked.
func (a *Agent) earlierHealth() func(service.Target) probe.Start {
	tables, err := observe.ReadTables(a.datapath.Tables)
	if err != nil {
		a.log.Error("the tables do not tell which backends were well; all count as well until they are asked", "error", err)
		return func(service.Target) probe.Start { return probe.Unknown }
	}
	type member struct {
		service service.Ref
		address string
	}
	served := map[member]bool{}
	for i := range tables.Services {
		s := &tables.Services[i]
		for _, f := range s.Frontends {
			for _, d := range []observe.Decision{f.Pod, f.Node, f.Outside, {Backends: f.Kept}} {
				for _, b := range d.Backends {
					served[member{s.Ref(), b.Address}] = true
				}
			}
		}
	}
	well := map[service.Target]bool{}
	for ref, all := range a.table.Checked() {
		for _, c := range all {
			well[c.Target] = well[c.Target] || served[member{ref, c.Endpoint.String()}]
		}
	}
	return func(t service.Target) probe.Start {
		if well[t] {
			return probe.Served
		}
		return probe.Unserved
	}
}

// servicesMost is how many Services a line of the log names.
const servicesMost = 8

// takeHealth brings what the prober has found into the tables.
func (a *Agent) takeHealth(changes []probe.Change) {
	fails := map[service.Target]bool{}
	slices.SortFunc(changes, func(x, y probe.Change) int { return x.Target.Addr.Compare(y.Target.Addr) })
	for _, c := range changes {
		// The change may be of an earlier time that the same was asked.
		state, asked := a.prober.State(c.Target)
		if !asked {
			continue
		}
		fails[c.Target] = !state.Up
		a.logHealth(c.Target, state)
	}
	a.program(a.table.SetHealth(fails))
}

func (a *Agent) logHealth(t service.Target, state probe.State) {
	var names []string
	users := a.table.TargetUsers(t)
	for _, ref := range users[:min(len(users), servicesMost)] {
		names = append(names, ref.Namespace+"/"+ref.Name)
	}
	if len(users) > servicesMost {
		names = append(names, "...")
	}
	services := strings.Join(names, ", ")
	if state.Up {
		a.log.Info("a backend passes its health check", "asked", t.Addr, "check", t.Probe.Kind, "services", services)
		return
	}
	a.log.Warn("a backend fails its health check", "asked", t.Addr, "check", t.Probe.Kind, "services", services, "why", state.Why)
}

// health is what is known of the backends of one Service.
func (a *Agent) health(ref service.Ref) *observe.Health {
	a.mu.Lock()
	all := a.checked[ref]
	a.mu.Unlock()
	if len(all) == 0 {
		return nil
	}
	h := &observe.Health{Check: all[0].Target.Probe.String()}
	for _, c := range all {
		if state, ok := a.prober.State(c.Target); ok {
			h.Backends = append(h.Backends, backendHealth(ref, c, state))
		}
	}
	return h
}

func backendHealth(ref service.Ref, c service.Checked, state probe.State) observe.BackendHealth {
	return observe.BackendHealth{
		Service: ref.Namespace + "/" + ref.Name, Address: c.Endpoint, Protocol: c.Protocol, Asked: c.Target.Addr,
		Up: state.Up, Asking: !state.Heard, Since: state.Since, Last: state.Last, Why: state.Why,
	}
}

// healthStatus is what is known of all backends that are asked; nil if none is.
func (a *Agent) healthStatus() *observe.HealthStatus {
	a.mu.Lock()
	checked := a.checked
	a.mu.Unlock()
	h := &observe.HealthStatus{Counters: a.prober.Counters()}
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
			if !state.Up {
				h.Down = append(h.Down, backendHealth(ref, c, state))
			}
		}
	}
	h.Targets = len(states)
	slices.SortFunc(h.Down, func(x, y observe.BackendHealth) int {
		return cmp.Or(strings.Compare(x.Service, y.Service), x.Address.Compare(y.Address), cmp.Compare(x.Protocol, y.Protocol))
	})
	return h
}
