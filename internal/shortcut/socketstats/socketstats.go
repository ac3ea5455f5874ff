// SPDX-License-Identifier: Apache-2.0

// Package socketstats is the statistics of connections at sockets as a component of the agent: it exports what the
// programs count for each Service and, on request, each backend.
package socketstats

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/spf13/pflag"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/component"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/util/plural"
)

// config is the configuration of the statistics.
type config struct {
	enabled    bool
	perBackend bool
}

// New returns the statistics. They are enabled unless --socket-stats=false.
func New() *component.Component {
	c := &config{}
	programs := bpf.SocketStats(c.datapathOptions)
	return &component.Component{Name: programs.Name, BPF: programs, AddFlags: c.addFlags, Complete: c.complete, New: c.run}
}

func (c *config) addFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&c.enabled, "socket-stats", true, "count the TCP connections of programs on this node to each Service: new, failed and open ones, bytes, retransmissions and round-trip times")
	fs.BoolVar(&c.perBackend, "socket-stats-per-backend", false, "with --socket-stats, count connections to each backend of each Service, too")
}

func (c *config) complete(*service.Config) error {
	if c.perBackend && !c.enabled {
		return errors.New("--socket-stats-per-backend has no effect with --socket-stats=false: remove one of them")
	}
	return nil
}

// datapathOptions are the options of the statistics in the datapath; nil: they are disabled.
func (c *config) datapathOptions() *bpf.SocketStatsOptions {
	if !c.enabled {
		return nil
	}
	return &bpf.SocketStatsOptions{PerBackend: c.perBackend}
}

// running are the running statistics.
type running struct{ env component.Env }

func (c *config) run(env component.Env) (*component.Instance, error) {
	if !c.enabled {
		return &component.Instance{}, nil
	}
	r := &running{env}
	if reason := env.Datapath.Unavailable[bpf.SocketStatsComponent]; reason != "" {
		env.Log.Error(reason)
		return &component.Instance{Status: r.statusOff}, nil
	}
	return &component.Instance{Audit: r.audit, Metrics: r.metrics, Conditions: r.conditions}, nil
}

func (r *running) statusOff(s *api.Status) {
	s.Components = append(s.Components, api.ComponentStatus{Name: "socket statistics", State: r.env.Datapath.Unavailable[bpf.SocketStatsComponent]})
}

// audit deletes the statistics of backends that are gone.
func (r *running) audit() ([]string, error) {
	existing := sync.OnceValues(func() (map[netip.AddrPort]bool, error) {
		rows, err := r.env.Datapath.Tables.Backends.All()
		all := make(map[netip.AddrPort]bool, len(rows))
		for _, b := range rows {
			all[netip.AddrPortFrom(b.Address.Addr(), bpf.NetworkOrder(b.Port))] = true
		}
		return all, err
	})
	return nil, bpf.DeleteSocketBackends(r.env.Datapath, func(backend netip.AddrPort) bool {
		all, err := existing()
		return err != nil || all[backend]
	})
}

func (r *running) conditions() condition.List {
	uncounted, err := bpf.UncountedSockets(r.env.Datapath)
	if err != nil || uncounted == 0 {
		return nil
	}
	return condition.List{condition.TableNearlyFull.New("not counted, because the tables of socket statistics had no room: %s", plural.Of(uncounted, "connection")).
		At(bpf.SockStatsMapServiceSockets).Do("leave --socket-stats-per-backend out, if the agent has it; or give it --socket-stats=false, if nobody needs the statistics")}
}

// metrics exports the statistics.
func (r *running) metrics() ([]api.Metric, error) {
	stats, err := bpf.ReadSocketStats(r.env.BPFFS)
	if err != nil || stats == nil {
		return nil, err
	}
	names, err := r.env.Datapath.Tables.Services.All()
	if err != nil {
		return nil, fmt.Errorf("read the names of Services: %w", err)
	}
	return export(stats, names), nil
}
