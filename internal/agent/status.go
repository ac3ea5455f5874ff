// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"os"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/offline"
	"beeline.io/beeline/internal/report/assess"
)

// tables reads the tables and adds the state of each object. Objects without table entries have no frontends.
func (a *Agent) tables(ctx context.Context, scope offline.Scope) (*api.Tables, error) {
	tables, err := offline.ReadScope(ctx, a.datapath.Tables, scope)
	if err != nil {
		return nil, err
	}
	tables.OutsideServed = bpf.HasEdge(a.config.BPFFS)
	if scope.Service != "" || scope.Owners {
		if err := offline.AddDraining(tables, a.config.BPFFS, scope); err != nil {
			return nil, err
		}
	}
	if scope.Service != "" {
		names, err := a.datapath.Tables.Services.All()
		if err != nil {
			return nil, err
		}
		if err := offline.AddConnections(tables, a.config.BPFFS, names); err != nil {
			return nil, err
		}
	}
	at := map[service.Ref]int{}
	for i := range tables.Services {
		at[tables.Services[i].Ref()] = i
	}
	for _, st := range a.syncer.Status() {
		if !scope.Wants(st.Owner) {
			continue
		}
		i, ok := at[st.Owner]
		if !ok {
			i = len(tables.Services)
			tables.Services = append(tables.Services, api.Service{
				Kind: st.Owner.Kind, Namespace: st.Owner.Namespace, Name: st.Owner.Name, Frontends: []api.Frontend{},
			})
		}
		s := &tables.Services[i]
		s.State, s.Reasons, s.Problems, s.Refusals = st.State, st.Reasons, st.Problems, st.Refusals
		s.Health = a.checks(st.Owner)
		if scope.Service != "" {
			offline.AddServiceDown(s, s.Health)
		}
	}
	if scope.Owners {
		offline.AddDown(tables, a.healthStatus())
	}
	return tables, nil
}

func (a *Agent) countedTables(ctx context.Context) (*api.Tables, error) {
	tables, err := a.tables(ctx, offline.Scope{})
	if err != nil {
		return nil, err
	}
	names, err := a.datapath.Tables.Services.All()
	if err != nil {
		return nil, err
	}
	if err := offline.AddConnections(tables, a.config.BPFFS, names); err != nil {
		return nil, err
	}
	return tables, offline.AddCounters(tables, a.config.BPFFS, names)
}

func (a *Agent) status(ctx context.Context) (*api.Status, error) {
	a.datapath.RestorePins() // an error is one of reading them, too
	tables, err := offline.ReadScope(ctx, a.datapath.Tables, offline.Scope{Outline: true})
	if err != nil {
		return nil, err
	}
	s := offline.ReadStatus(a.config.BPFFS, a.version, tables, a.config.Components.ReadPins, true)
	if s.Tables, err = a.syncer.Usage(); err != nil {
		return nil, err
	}
	if s.PortConflicts, err = offline.PortConflicts(tables); err != nil {
		s.PortConflictsUnavailable = err.Error()
	}
	a.completeStatus(s)
	return s, nil
}

// completeStatus adds what only the agent knows, and the conditions.
func (a *Agent) completeStatus(s *api.Status) {
	var err error
	s.Running, s.Answered, s.PID, s.Started = true, true, os.Getpid(), a.started
	s.Node, s.Cgroup, s.ExpectedAttachments = a.config.NodeName, a.datapath.CgroupPath(), a.datapath.Hooks()
	if s.Attachments, err = a.datapath.Attachments(); err != nil {
		s.UnreadablePins = err.Error()
	}
	s.Algorithm, s.MaglevTableSize = a.config.Service.Algorithm, a.config.Service.TableSize
	s.DSR, s.DSRHybrid = a.config.Service.DSR, a.config.Service.DSRHybrid
	s.Sync = a.syncer.Stats()
	s.ObjectsWithProblems = a.syncer.Unsettled()
	a.components.Status(s)
	s.Health = a.healthStatus()
	s.Source = a.sourceStatus()
	assess.Status(s)
}
