// SPDX-License-Identifier: Apache-2.0

// Package socket is the socket shortcut as a component of the agent: its flags, the pods that opt out of it
// (internal/part/optout), and garbage collection of sockets whose backend was removed (sockgc).
package socket

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/component"
	"beeline.io/beeline/internal/part/optout"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/report/metrics"
	"beeline.io/beeline/internal/shortcut/socket/sockgc"
)

// config is the socket shortcut's configuration.
type config struct {
	podCgroups     []string
	bindProtection bool          // bpf.Options.BindProtection
	terminate      string        // sockgc.Method
	tcpDrain       time.Duration // 0: TCP connections are kept when their backend is removed
}

// New returns the socket shortcut.
func New() *component.Component {
	c := &config{}
	programs := bpf.Socket()
	return &component.Component{
		Name: programs.Name, BPF: programs,
		AddFlags: c.addFlags, Complete: c.complete, Options: c.options, New: c.run, Detached: endServiceSockets,
		CheckObjects: checkOptOuts,
	}
}

// endServiceSockets ends the UDP sockets that the detached hooks have connected to backends.
func endServiceSockets(bpffs string) (note string, err error) {
	const remedy = "some may stay connected to backends that go: restart programs that send to Services by connected UDP sockets"
	ended, unseen, err := sockgc.EndAll(bpffs, sockgc.Auto)
	if errors.Is(err, os.ErrNotExist) { // no agent has run
		return "", nil
	}
	note = fmt.Sprintf("ended %d UDP sockets that were connected to backends of Services: their programs get ECONNABORTED", ended)
	switch {
	case err != nil:
		return note + "; " + remedy, err
	case unseen != "":
		note += fmt.Sprintf("; %s (%s)", remedy, unseen)
	case ended == 0:
		return "", nil
	}
	return note, nil
}

func (c *config) addFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&c.podCgroups, "pod-cgroups", nil, "directories to search for the kubelet's cgroup directory (kubepods.slice or kubepods), or that directory itself (default: all cgroup hierarchies)")
	fs.StringVar(&c.terminate, "terminate-sockets", string(sockgc.Auto), "how to terminate connected UDP sockets of removed backends, in all pods and on the node: "+strings.Join(sockgc.Methods, ", "))
	fs.DurationVar(&c.tcpDrain, "tcp-drain-timeout", 0, "reset TCP connections when their backend has been out of service for this long; 0 for never")
	fs.BoolVar(&c.bindProtection, "bind-protection", true, "refuse bind() of a served NodePort or HostPort in the node's own network namespace: the process would never receive a connection")
}

func (c *config) complete(services *service.Config) error {
	services.KeepTCP = c.tcpDrain > 0
	switch {
	case slices.ContainsFunc(c.podCgroups, func(path string) bool { return !filepath.IsAbs(path) }):
		return fmt.Errorf("--pod-cgroups %q: not absolute paths", c.podCgroups)
	case !slices.Contains(sockgc.Methods, c.terminate):
		return fmt.Errorf("--terminate-sockets %q: one of %s", c.terminate, strings.Join(sockgc.Methods, ", "))
	case c.tcpDrain < 0:
		return errors.New("--tcp-drain-timeout is negative: give 0 to keep TCP connections")
	case c.tcpDrain > 0 && c.terminate == string(sockgc.Off):
		return errors.New("--tcp-drain-timeout has no effect with --terminate-sockets=off: choose another method")
	}
	return nil
}

func (c *config) options(o *bpf.Options) { o.BindProtection = c.bindProtection }

// running is a running socket shortcut.
type running struct {
	env     component.Env
	optOuts optOuts
	sockets *sockgc.Collector
}

func (c *config) run(env component.Env) (*component.Instance, error) {
	if reason := env.Datapath.Unavailable[bpf.BindProtection]; reason != "" {
		condition.BindNotProtected.Log(env.Log, reason)
	}
	tracker, err := optout.New(env.Datapath.Tables.OptedOut, c.podCgroups, env.Datapath.CgroupPath(), env.Log)
	if err != nil {
		return nil, err
	}
	r := &running{env: env, optOuts: optOuts{tracker: tracker, log: env.Log, selected: service.NewOptOuts(env.Node), changed: true}}
	r.sockets = sockgc.New(env.Datapath, sockgc.Config{
		Method: sockgc.Method(c.terminate), TCPDrain: c.tcpDrain, Serves: env.Serves, Log: env.Log,
	})
	return &component.Instance{
		Objects: r.optOuts.objects, Prepare: r.optOuts.prepare, Audit: r.optOuts.audit, BackendsRemoved: r.sockets.Changed,
		Run:    []component.Task{{Name: "socket garbage collection", Run: r.sockets.Run}, {Name: "pods", Run: tracker.Run}},
		Close:  r.sockets.Close,
		Status: r.status, Metrics: r.metrics,
	}, nil
}

func (r *running) status(s *api.Status) {
	s.BindProtectionUnavailable, s.SocketTermination = r.env.Datapath.Unavailable[bpf.BindProtection], r.sockets.Status()
	r.optOuts.status(s)
}

// metrics returns the counters of the hooks.
func (r *running) metrics() (all []api.Metric, err error) {
	counters, err := bpf.ReadCounters(r.env.BPFFS)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(counters) // gives each counter its name in the status
	if err != nil {
		return nil, err
	}
	byName := map[string]uint64{}
	if err := json.Unmarshal(text, &byName); err != nil {
		return nil, err
	}
	b := metrics.NewBatch()
	enabled := 0.0
	if r.env.Datapath.Prefilter().Enabled() {
		enabled = 1
	}
	b.Add("beeline_prefilter_enabled", enabled)
	for name, n := range byName {
		b.Add("beeline_socket_calls_total", float64(n), "event", name)
	}
	ended := r.sockets.Status()
	b.Add("beeline_sockets_ended_total", float64(ended.EndedUDP), "protocol", service.UDP.String())
	b.Add("beeline_sockets_ended_total", float64(ended.EndedTCP), "protocol", service.TCP.String())
	return b.Metrics, nil
}
