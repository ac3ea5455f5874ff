// SPDX-License-Identifier: Apache-2.0

package nodehealth

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/report/httpserve"
)

// NodePorts serves the healthCheckNodePorts of Services (R34). Set is called by one goroutine, the other methods
// by any.
type NodePorts struct {
	// Healthy is serviceProxyHealthy.
	Healthy func() bool
	// Most is how many listeners there may be: each takes a file descriptor of the agent.
	Most int
	Log  *slog.Logger

	connections *httpserve.Connections // of all listeners

	mu      sync.Mutex
	started int // nodePorts with a server that listens or tries to
	waiting int // without one, because there are Most
	// serving holds the servers of each Service. In manifests two Services may ask for the same address.
	serving map[service.Ref]map[netip.AddrPort]*nodePort
}

// nodePort is a server of one address.
type nodePort struct {
	owner  service.Ref
	server httpserve.Server
	place  int // among the Service's addresses
	ready  int
	served bool
	cancel context.CancelFunc // nil: it waits until there are fewer than NodePorts.Most
	ended  chan struct{}
}

// NewNodePorts returns a NodePorts that serves nothing, with at most so many listeners and connections to them.
func NewNodePorts(healthy func() bool, listeners, connections int, log *slog.Logger) *NodePorts {
	return &NodePorts{
		Healthy: healthy, Most: listeners, Log: log,
		connections: httpserve.NewConnections(connections), serving: map[service.Ref]map[netip.AddrPort]*nodePort{},
	}
}

// Set replaces the addresses of one Service; none if it has no plan. Addresses that stay keep their listeners
// and connections. served reports whether the tables hold the Service: if not, the node does not serve it,
// whatever its endpoints.
func (n *NodePorts) Set(owner service.Ref, ports []service.HealthPort, served bool) {
	n.mu.Lock()
	ended := n.remove(owner, ports)
	all := n.serving[owner]
	if all == nil && len(ports) > 0 {
		all = map[netip.AddrPort]*nodePort{}
		n.serving[owner] = all
	}
	for place, wanted := range ports {
		p := all[wanted.Addr]
		if p == nil {
			p = n.newNodePort(owner, wanted.Addr)
			all[wanted.Addr] = p
			n.waiting++
			n.start(p)
		}
		p.place, p.ready, p.served = place, wanted.Ready, served
	}
	n.mu.Unlock()
	n.await(ended)
}

// remove takes back the addresses of a Service other than the wanted ones, and returns those that have to end. The
// caller holds the lock, and calls await after it.
func (n *NodePorts) remove(owner service.Ref, wanted []service.HealthPort) (ended []*nodePort) {
	all := n.serving[owner]
	for addr, p := range all {
		if slices.ContainsFunc(wanted, func(w service.HealthPort) bool { return w.Addr == addr }) {
			continue
		}
		delete(all, addr)
		if p.cancel == nil {
			n.waiting--
			continue
		}
		n.started--
		p.cancel()
		ended = append(ended, p)
	}
	if len(all) == 0 {
		delete(n.serving, owner)
	}
	return ended
}

// await returns when other Services can have the ports of servers that end, and starts servers that wait.
func (n *NodePorts) await(ended []*nodePort) {
	for _, p := range ended {
		<-p.ended
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.waiting == 0 || n.started >= n.Most {
		return
	}
	var waiting []*nodePort
	for _, all := range n.serving {
		for _, p := range all {
			if p.cancel == nil {
				waiting = append(waiting, p)
			}
		}
	}
	// One address of each Service first.
	slices.SortFunc(waiting, func(a, b *nodePort) int { return cmp.Or(a.place-b.place, a.owner.Compare(b.owner)) })
	for _, p := range waiting {
		n.start(p)
	}
}

// start starts a server that waits, if there may be more. The caller holds the lock.
func (n *NodePorts) start(p *nodePort) {
	if n.started >= n.Most {
		return
	}
	n.started++
	n.waiting--
	p.ended = make(chan struct{})
	var ctx context.Context
	ctx, p.cancel = context.WithCancel(context.Background())
	go func() {
		defer close(p.ended)
		p.server.Run(ctx)
	}()
}

// newNodePort returns the server of an address, which does not run yet.
func (n *NodePorts) newNodePort(owner service.Ref, addr netip.AddrPort) *nodePort {
	p := &nodePort{owner: owner}
	p.server = httpserve.Server{
		Name: "the healthCheckNodePort of " + owner.String(), Network: "tcp4", Address: addr.String(), Log: n.Log, Quiet: true, Problem: condition.HealthCheckNodePortNotServed,
		Handler:     http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { n.answer(w, p) }),
		Connections: n.connections,
	}
	if service.FamilyOf(addr.Addr()) == service.IPv6 {
		p.server.Network = "tcp6"
	}
	return p
}

// Refresh updates whether the tables hold each Service.
func (n *NodePorts) Refresh(served func(service.Ref) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for owner, all := range n.serving {
		holds := served(owner)
		for _, port := range all {
			port.served = holds
		}
	}
}

// Close stops listening.
func (n *NodePorts) Close() {
	n.mu.Lock()
	n.Most = 0
	var ended []*nodePort
	for owner := range n.serving {
		ended = append(ended, n.remove(owner, nil)...)
	}
	n.mu.Unlock()
	n.await(ended)
}

// answer sends what kube-proxy 1.36 sends, byte for byte.
func (n *NodePorts) answer(w http.ResponseWriter, port *nodePort) {
	healthy := n.Healthy()
	n.mu.Lock()
	ready := port.ready
	healthy = healthy && port.served
	n.mu.Unlock()
	setHeaders(w.Header())
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(ready))
	if ready == 0 || !healthy {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	fmt.Fprintf(w, "{\n\t\"service\": {\n\t\t\"namespace\": %q,\n\t\t\"name\": %q\n\t},\n\t\"localEndpoints\": %d,\n\t\"serviceProxyHealthy\": %v\n}",
		port.owner.Namespace, port.owner.Name, ready, healthy)
}

// Problems returns the addresses at which the agent cannot listen, sorted.
func (n *NodePorts) Problems() (all []service.ObjectProblem) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, owner := range slices.SortedFunc(maps.Keys(n.serving), service.Ref.Compare) {
		waiting, port := 0, uint16(0)
		for _, addr := range slices.SortedFunc(maps.Keys(n.serving[owner]), netip.AddrPort.Compare) {
			p := n.serving[owner][addr]
			if p.cancel == nil {
				waiting, port = waiting+1, addr.Port()
			} else if err := p.server.Err(); err != nil {
				c := condition.HealthCheckNodePortNotServed.New("healthCheckNodePort %d is not served at %s: %v", addr.Port(), addr.Addr(), err)
				all = append(all, service.ObjectProblem{Object: owner, Problem: c.At(owner.String())})
			}
		}
		if waiting > 0 {
			c := condition.HealthCheckNodePortNotServed.New("healthCheckNodePort %d is not served at %d addresses: the agent has %d listeners for such ports, all that its limit of open files allows", port, waiting, n.started)
			c = c.Do("select fewer addresses by --nodeport-addresses, or all of them (0.0.0.0/0 and ::/0), for which one listener suffices; or raise the agent's limit of open files")
			all = append(all, service.ObjectProblem{Object: owner, Problem: c.At(owner.String())})
		}
	}
	return all
}
