// SPDX-License-Identifier: Apache-2.0

package nodehealth

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"

	"beeline.io/beeline/internal/condition"
	"beeline.io/beeline/internal/httpserve"
	"beeline.io/beeline/internal/service"
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
	started int // nodePorts with a server that runs
	waiting int // without one, because there are Most
	// serving holds the servers of each Service. In manifests two Services may ask for the same address.
	serving map[service.Ref]map[netip.AddrPort]*nodePort
}

// nodePort is a server of one address.
type nodePort struct {
	owner  service.Ref
	server httpserve.Server
	ready  int
	served bool
	cancel context.CancelFunc // nil: it waits until there are fewer than NodePorts.Most
	ended  chan struct{}
}

// NewNodePorts returns a NodePorts that serves nothing.
func NewNodePorts(healthy func() bool, most int, log *slog.Logger) *NodePorts {
	return &NodePorts{Healthy: healthy, Most: most, Log: log, connections: httpserve.NewConnections(), serving: map[service.Ref]map[netip.AddrPort]*nodePort{}}
}

// Set replaces the addresses of one Service; none if it has no plan. Addresses that stay keep their listeners
// and connections. served reports whether the tables hold the Service: if not, the node does not serve it,
// whatever its endpoints.
func (n *NodePorts) Set(owner service.Ref, ports []service.HealthPort, served bool) {
	if len(ports) == 0 && n.serving[owner] == nil {
		return
	}
	wanted := map[netip.AddrPort]int{}
	for _, p := range ports {
		wanted[p.Addr] = p.Ready
	}
	n.stop(owner, wanted)
	n.mu.Lock()
	defer n.mu.Unlock()
	all := n.serving[owner]
	if all == nil && len(wanted) > 0 {
		all = map[netip.AddrPort]*nodePort{}
		n.serving[owner] = all
	}
	for addr, ready := range wanted {
		if all[addr] == nil {
			all[addr] = n.newNodePort(owner, addr)
			n.waiting++
		}
		all[addr].ready, all[addr].served = ready, served
	}
	n.startWaiting()
}

// startWaiting starts the servers that wait, as far as there may be more. The caller holds the lock.
func (n *NodePorts) startWaiting() {
	if n.waiting == 0 || n.started >= n.Most {
		return
	}
	for _, owner := range slices.SortedFunc(maps.Keys(n.serving), service.Ref.Compare) {
		for _, p := range n.serving[owner] {
			if p.cancel == nil && n.started < n.Most {
				p.start()
				n.started++
				n.waiting--
			}
		}
	}
}

// stop closes the listeners of a Service that are not wanted, and returns when another Service can have their
// ports.
func (n *NodePorts) stop(owner service.Ref, wanted map[netip.AddrPort]int) {
	var gone []*nodePort
	n.mu.Lock()
	all := n.serving[owner]
	for addr, port := range all {
		if _, stays := wanted[addr]; stays {
			continue
		}
		delete(all, addr)
		if port.cancel == nil {
			n.waiting--
		} else {
			n.started--
			gone = append(gone, port)
		}
	}
	if len(all) == 0 {
		delete(n.serving, owner)
	}
	n.mu.Unlock()
	for _, port := range gone {
		port.cancel()
		<-port.ended
	}
	if len(gone) > 0 {
		n.mu.Lock()
		n.startWaiting()
		n.mu.Unlock()
	}
}

// newNodePort returns the server of an address, which does not run yet.
func (n *NodePorts) newNodePort(owner service.Ref, addr netip.AddrPort) *nodePort {
	p := &nodePort{owner: owner}
	p.server = httpserve.Server{
		Name: "the healthCheckNodePort of " + owner.String(), Network: "tcp4", Address: addr.String(), Log: n.Log, Quiet: true,
		Handler:     http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { n.answer(w, p) }),
		Connections: n.connections,
	}
	if service.FamilyOf(addr.Addr()) == service.IPv6 {
		p.server.Network = "tcp6"
	}
	return p
}

func (p *nodePort) start() {
	p.ended = make(chan struct{})
	var ctx context.Context
	ctx, p.cancel = context.WithCancel(context.Background())
	go func() {
		defer close(p.ended)
		p.server.Run(ctx)
	}()
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
	owners := slices.Collect(maps.Keys(n.serving))
	n.mu.Unlock()
	for _, owner := range owners {
		n.stop(owner, nil)
	}
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

// Problem is an address of a Service that is not served.
type Problem struct {
	Owner     service.Ref
	Condition condition.Condition
}

// Problems returns the addresses at which the agent cannot listen, sorted.
func (n *NodePorts) Problems() (all []Problem) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, owner := range slices.SortedFunc(maps.Keys(n.serving), service.Ref.Compare) {
		waiting := 0
		for _, addr := range slices.SortedFunc(maps.Keys(n.serving[owner]), netip.AddrPort.Compare) {
			p := n.serving[owner][addr]
			if p.cancel == nil {
				waiting++
			} else if err := p.server.Err(); err != nil {
				c := condition.HealthCheckNodePortNotServed.New("healthCheckNodePort %d is not served at %s: %v", addr.Port(), addr.Addr(), err)
				all = append(all, Problem{owner, c.At(owner.String())})
			}
		}
		if waiting > 0 {
			c := condition.HealthCheckNodePortNotServed.New("the healthCheckNodePort is not served at %d addresses: the agent listens for %d already, all that its limit of open files allows", waiting, n.started)
			c = c.Do("select fewer addresses by --nodeport-addresses, or all of them (0.0.0.0/0 and ::/0), for which one listener suffices; or raise the agent's limit of open files")
			all = append(all, Problem{owner, c.At(owner.String())})
		}
	}
	return all
}
