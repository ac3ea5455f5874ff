// SPDX-License-Identifier: Apache-2.0

package component

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/pflag"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/node/flow"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/report/explain"
)

// A List is the components of an agent. A component may use the tables of those before it.
type List []*Component

// AddFlags defines the flags of all components.
func (l List) AddFlags(fs *pflag.FlagSet) {
	for _, c := range l {
		if c.AddFlags != nil {
			c.AddFlags(fs)
		}
	}
}

// Complete validates the flags of all components.
func (l List) Complete(services *service.Config) error {
	for _, c := range l {
		if c.Complete == nil {
			continue
		}
		if err := c.Complete(services); err != nil {
			return err
		}
	}
	return nil
}

// Check returns what is wrong with the complete configuration.
func (l List) Check() (all condition.List) {
	for _, c := range l {
		if c.Check != nil {
			all = append(all, c.Check()...)
		}
	}
	return all
}

// CheckObjects returns what is wrong with the objects of a node.
func (l List) CheckObjects(node string, objects []service.Change) (all []service.ObjectProblem) {
	for _, c := range l {
		if c.CheckObjects != nil {
			all = append(all, c.CheckObjects(node, objects)...)
		}
	}
	return all
}

// Effective replaces the settings whose value the components have chosen.
func (l List) Effective(settings map[string]any) {
	for _, c := range l {
		if c.Effective != nil {
			c.Effective(settings)
		}
	}
}

// Options sets the datapath options of all components.
func (l List) Options(o *bpf.Options) {
	o.Components = l.BPF()
	for _, c := range l {
		if c.Options != nil {
			c.Options(o)
		}
	}
}

// BPF returns the BPF parts of the components.
func (l List) BPF() (all []*bpf.Component) {
	for _, c := range l {
		if c.BPF != nil {
			all = append(all, c.BPF)
		}
	}
	return all
}

// ReadPins adds to a status what the pins of all components say.
func (l List) ReadPins(bpffs string, s *api.Status, count bool) (failed error) {
	for _, c := range l {
		if c.ReadPins != nil {
			failed = errors.Join(failed, c.ReadPins(bpffs, s, count))
		}
	}
	return failed
}

// Explain returns what the first component that has the packet's flow does with it.
func (l List) Explain(bpffs string, packet flow.Tuple, device string) (found *explain.Offload, note string, err error) {
	for _, c := range l {
		if c.Explain == nil {
			continue
		}
		if found, note, err = c.Explain(bpffs, packet, device); found != nil || err != nil {
			break
		}
	}
	return found, note, err
}

// Detached calls that of all components.
func (l List) Detached(bpffs string) (notes []string, failed error) {
	for _, c := range l {
		if c.Detached == nil {
			continue
		}
		note, err := c.Detached(bpffs)
		if note != "" {
			notes = append(notes, note)
		}
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("component %s: %w", c.Name, err))
		}
	}
	return notes, failed
}

// Cleanup removes what the components have left outside of their pins.
func (l List) Cleanup() (failed error) {
	for _, c := range l {
		if c.Cleanup == nil {
			continue
		}
		if err := c.Cleanup(); err != nil {
			failed = errors.Join(failed, fmt.Errorf("component %s: %w", c.Name, err))
		}
	}
	return failed
}

// New starts all components. If one fails, it closes the others.
func (l List) New(env Env) (Running, error) {
	var all Running
	for _, c := range l {
		if c.New == nil {
			continue
		}
		instance, err := c.New(env)
		if err != nil {
			all.Close()
			return nil, fmt.Errorf("component %s: %w", c.Name, err)
		}
		all = append(all, running{c.Name, instance})
	}
	return all, nil
}

// Running are the components of a running agent.
type Running []running

type running struct {
	name string
	*Instance
}

// Objects calls Instance.Objects of all components.
func (r Running) Objects(changes []service.Change) {
	for _, c := range r {
		if c.Objects != nil {
			c.Objects(changes)
		}
	}
}

// Prepare calls Instance.Prepare of all components, the last first, because a component takes over what those
// before it no longer serve. So the edge is at a pod's device before the pod loses the socket shortcut.
func (r Running) Prepare(change service.Delta) {
	for _, c := range slices.Backward(r) {
		if c.Prepare != nil {
			c.Prepare(change)
		}
	}
}

// Apply calls Instance.Apply of all components.
func (r Running) Apply(change service.Delta) {
	for _, c := range r {
		if c.Apply != nil {
			c.Apply(change)
		}
	}
}

// Written calls Instance.Written of all components.
func (r Running) Written() {
	for _, c := range r {
		if c.Written != nil {
			c.Written()
		}
	}
}

// Start calls Instance.Start of all components.
func (r Running) Start() {
	for _, c := range r {
		if c.Start != nil {
			c.Start()
		}
	}
}

// BackendsRemoved calls Instance.BackendsRemoved of all components.
func (r Running) BackendsRemoved(udp, tcp bool) {
	for _, c := range r {
		if c.BackendsRemoved != nil {
			c.BackendsRemoved(udp, tcp)
		}
	}
}

// Repair calls Instance.Repair of all components.
func (r Running) Repair() (repaired []string) {
	for _, c := range r {
		if c.Repair != nil {
			repaired = append(repaired, c.Repair()...)
		}
	}
	return repaired
}

// Faults returns the faults of all components.
func (r Running) Faults() (all condition.List) {
	for _, c := range r {
		if c.Faults != nil {
			all = append(all, c.Faults()...)
		}
	}
	return all
}

// Audit calls Instance.Audit of all components, even if one fails.
func (r Running) Audit() (repaired []string, failed error) {
	for _, c := range r {
		if c.Audit == nil {
			continue
		}
		what, err := c.Audit()
		repaired = append(repaired, what...)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("component %s: %w", c.name, err))
		}
	}
	return repaired, failed
}

// Tasks returns the tasks of all components.
func (r Running) Tasks() (all []Task) {
	for _, c := range r {
		all = append(all, c.Run...)
	}
	return all
}

// Close calls Instance.Close of all components, the last first.
func (r Running) Close() {
	for _, c := range slices.Backward(r) {
		if c.Close != nil {
			c.Close()
		}
	}
}

// Status adds the components' parts of the status, and their conditions: these replace those read from the pins.
func (r Running) Status(s *api.Status) {
	s.ComponentConditions = nil
	for _, c := range r {
		if c.Status != nil {
			c.Status(s)
		}
		if c.Conditions != nil {
			s.ComponentConditions = append(s.ComponentConditions, c.Conditions()...)
		}
	}
}

// Metrics returns the metrics of all components.
func (r Running) Metrics() (all []api.Metric, failed error) {
	for _, c := range r {
		if c.Metrics == nil {
			continue
		}
		metrics, err := c.Metrics()
		all = append(all, metrics...)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("component %s: %w", c.name, err))
		}
	}
	return all, failed
}

// Answers returns Instance.Answers of all components.
func (r Running) Answers() map[string]Answer {
	all := map[string]Answer{}
	for _, c := range r {
		maps.Copy(all, c.Answers)
	}
	return all
}
