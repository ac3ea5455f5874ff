// SPDX-License-Identifier: Apache-2.0

// Package component defines what the agent knows of a shortcut. A shortcut is a value of type Component: its flags,
// its BPF part (datapath.Component), and a function that makes it run. The agent has a list of them, and treats all
// alike. docs/develop/components.md tells how to add one.
package component

import (
	"context"
	"log/slog"
	"net/netip"

	"github.com/spf13/pflag"

	"beeline.io/beeline/internal/condition"
	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/inspect"
	"beeline.io/beeline/internal/reconcile"
	"beeline.io/beeline/internal/service"
)

// A Component is a shortcut, enabled or not. A function that is nil is not needed.
type Component struct {
	// Name is unique. It is also that of BPF.
	Name string
	// BPF has its objects, tables, constants and hooks. Loading, pinning, resizing, repair of pins and links, and
	// cleanup follow from it.
	BPF *datapath.Component

	// AddFlags defines flags and their defaults. They are also settings of the configuration file.
	AddFlags func(*pflag.FlagSet)
	// Complete validates the flags, and sets what they change about Services. The rest of the configuration
	// of Services is set, except what later components set.
	Complete func(*service.Config) error
	// Check returns what is wrong with a complete configuration on this machine. It changes nothing.
	Check func() condition.List
	// Options sets the options of the datapath that are the component's.
	Options func(*datapath.Options)

	// New makes the component run, as soon as the datapath is loaded. Programs of an earlier agent may be
	// attached and use the tables.
	New func(Env) (*Instance, error)
}

// Env is what an Instance works with.
type Env struct {
	Datapath *datapath.Datapath
	Syncer   *reconcile.Syncer
	BPFFS    string
	Log      *slog.Logger
}

// Serves reports whether a connection's backend currently serves its service.
func (e *Env) Serves(c datapath.Connection) bool {
	return e.Syncer.Serves(service.Protocol(c.Protocol), c.Service, c.Backend)
}

// An Instance is a component of a running agent. A function that is nil is not needed. The agent's loop calls
// Prepare to Audit, one after the other; Status, Conditions and Metrics are called at any time from other goroutines.
type Instance struct {
	// Prepare is called before a change is written to the tables, and the first time with the complete state. It
	// brings about what packets need once they follow the change. Later components come first.
	Prepare func(Change)
	// Apply is called when the change has been written as far as possible; the agent retries the rest.
	Apply func(Change)
	// Start is called once, when the tables hold the complete state: from now on the component may attach
	// its programs to devices. The hooks of cgroups follow, unless an earlier agent attached them.
	Start func()
	// BackendsRemoved is called after Start when backends of UDP or TCP Services may have gone out of service.
	BackendsRemoved func(udp, tcp bool)
	// Repair is called every second after Start. It looks for what is cheap to see, and returns what it
	// restored. Pins, and links of hooks, are restored without it.
	Repair func() []string
	// Audit is called at the audit interval after Start. It compares everything, and returns what it restored.
	Audit func() ([]string, error)

	// Run are goroutines that run until ctx ends. The agent ends if one returns an error.
	Run []Task
	// Close is called at the end, before the tables are closed. The programs stay attached.
	Close func()

	// Status adds to the status what only the running component knows.
	Status func(*inspect.Status)
	// Conditions returns what is not as it should be, apart from what the status tells anyway
	// (inspect.Status.Assess).
	Conditions func() condition.List
	// Metrics reads the component's metrics.
	Metrics func() ([]inspect.Metric, error)
}

// A Task is a goroutine with a name for errors.
type Task struct {
	Name string
	Run  func(ctx context.Context) error
}

// A Change is a change of the cluster as the tables of one node have it.
type Change struct {
	// Delta is what changed, the first time the complete state.
	Delta service.Delta
	// Cluster is the state after the change. It is valid during the call.
	Cluster *service.Cluster
	// Addresses are those of the node's interfaces that other hosts can reach.
	Addresses []netip.Addr
	// OptOuts are the pods that opt out of the socket shortcut. They are valid during the call.
	OptOuts *service.OptOuts
	// OptOutsChanged is set the first time, and when OptOuts changed.
	OptOutsChanged bool
}
