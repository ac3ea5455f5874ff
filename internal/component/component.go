// SPDX-License-Identifier: Apache-2.0

// Package component defines the parts of the agent with programs, tables and flags (socket, edge, ...): a Component has
// its flags, its BPF part (bpf.Component) and a function that starts it. The agent has a list of components and treats
// them all alike. docs/develop/components.md describes how to add one.
package component

import (
	"context"
	"log/slog"

	"github.com/spf13/pflag"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/node"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/report/explain"
	"beeline.io/beeline/internal/report/metrics"
	"beeline.io/beeline/internal/tables/reconcile"
)

// A Component is a part of the agent with programs, tables and flags, enabled or not. Optional functions are nil.
type Component struct {
	// Name is unique, and also the name of BPF.
	Name string
	// BPF declares its objects, tables, constants and hooks. Loading, pinning, resizing, repair of pins and
	// links, and cleanup follow from it.
	BPF *bpf.Component

	// AddFlags defines flags and their defaults. They are also settings of the configuration file.
	AddFlags func(*pflag.FlagSet)
	// Complete validates the flags, and sets the fields of the Service configuration that they control. The
	// other fields are set, except those of later components.
	Complete func(*service.Config) error
	// Check returns what is wrong with a complete configuration on this machine. It changes nothing.
	Check func() condition.List
	// CheckObjects returns what is wrong with the objects of a node, as far as the component reads them.
	CheckObjects func(node string, objects []service.Change) []service.ObjectProblem
	// Effective replaces the settings, by the names of their flags, whose value the component has chosen. It
	// is called after Complete.
	Effective func(settings map[string]any)
	// Options sets the component's options of the datapath.
	Options func(*bpf.Options)

	// New starts the component once the datapath is loaded. Programs of an earlier agent may be attached
	// and use the tables.
	New func(Env) (*Instance, error)
	// ReadPins adds to a status what the component's pins say, with their conditions. It needs no agent. Conntrack
	// entries are counted, which is a walk of them, only if count is set.
	ReadPins func(bpffs string, s *api.Status, count bool) error
	// Explain returns what the component does with packets that are for no Service.
	Explain explain.OffloadReader
	// Detached is called by cleanup when the programs of all components are detached and their tables are still
	// pinned. The note is for who cleans up; empty: none. No agent is running.
	Detached func(bpffs string) (note string, err error)
	// Cleanup removes what the component has left outside of its pins. No agent is running.
	Cleanup func() error
}

// Env is the environment of an Instance.
type Env struct {
	Datapath *bpf.Datapath
	Syncer   *reconcile.Syncer
	BPFFS    string
	Node     string        // the name of this node
	Network  *node.Network // that of this node
	// Cluster is the state of the cluster. Only Objects, Prepare and Apply may use it.
	Cluster *service.Cluster
	// Metrics are those with kube-proxy's names; Instance.Metrics returns the others.
	Metrics *metrics.Proxy
	Log     *slog.Logger
}

// Serves reports whether a connection's backend currently serves its service.
func (e *Env) Serves(c bpf.Connection) bool {
	return e.Syncer.Serves(service.Protocol(c.Protocol), c.Service, c.Backend)
}

// An Instance is a component of a running agent. Optional functions are nil. The agent's loop calls Objects to
// Audit, one at a time; other goroutines call Status, Conditions and Metrics at any time.
type Instance struct {
	// Objects is called with each batch of objects that changed, also before the state is complete. The component
	// selects those that it serves; what it does for them is the task of Prepare.
	Objects func([]service.Change)
	// Prepare is called before a change is written to the tables, the first time with the complete state.
	// It sets up what packets need once the change is in effect. Later components come first.
	Prepare func(service.Delta)
	// Apply is called after as much of the change as possible is written; the agent retries the rest.
	Apply func(service.Delta)
	// Written is called after each attempt to write to the tables: of a change, a retry or an audit.
	Written func()
	// Start is called once, when the tables hold the complete state: the component may now attach its
	// programs to devices. Cgroup hooks are attached next, unless an earlier agent did.
	Start func()
	// BackendsRemoved is called after Start when backends of UDP or TCP Services may have been removed.
	BackendsRemoved func(udp, tcp bool)
	// Repair is called every second after Start. It makes only cheap checks, and returns what it restored.
	// Pins and hook links are restored without it.
	Repair func() []string
	// Audit is called at the audit interval after Start. It compares all state, and returns what it
	// restored.
	Audit func() ([]string, error)

	// Run are goroutines that run until ctx ends. The agent stops if one returns an error.
	Run []Task
	// Close is called last, before the tables are closed. The programs stay attached.
	Close func()

	// Status adds what only the running component knows.
	Status func(*api.Status)
	// Conditions returns the component's conditions, except those that follow from the status
	// (assess.Status).
	Conditions func() condition.List
	// Faults returns the conditions under which the node does not serve what it should: /healthz answers 503.
	// Called every second after Start.
	Faults func() condition.List
	// Metrics reads the component's metrics.
	Metrics func() ([]api.Metric, error)
	// Answers are the component's questions at the agent's socket, by their paths.
	Answers map[string]Answer
}

// An Answer returns what a question at the agent's socket is answered with, as JSON. It is called at any time.
type Answer func(context.Context) (any, error)

// A Task is a goroutine with a name for errors.
type Task struct {
	Name string
	Run  func(ctx context.Context) error
}
