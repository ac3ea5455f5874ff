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
	Log     *slog.Logger

	mu sync.Mutex
	// serving holds the servers of each Service. In manifests two Services may ask for the same address.
	serving map[service.Ref]map[netip.AddrPort]*nodePort
}

// nodePort is a server of one address.
type nodePort struct {
	owner  service.Ref
	server httpserve.Server
	ready  int
	served bool
	cancel context.CancelFunc
	ended  chan struct{}
}

// NewNodePorts returns a NodePorts that serves nothing.
func NewNodePorts(healthy func() bool, log *slog.Logger) *NodePorts {
	return &NodePorts{Healthy: healthy, Log: log, serving: map[service.Ref]map[netip.AddrPort]*nodePort{}}
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
			all[addr] = n.start(owner, addr)
		}
		all[addr].ready, all[addr].served = ready, served
	}
}

// stop closes the listeners of a Service that are not wanted, and returns when another Service can have their
// ports.
func (n *NodePorts) stop(owner service.Ref, wanted map[netip.AddrPort]int) {
	var gone []*nodePort
	n.mu.Lock()
	all := n.serving[owner]
	for addr, port := range all {
		if _, stays := wanted[addr]; !stays {
			gone = append(gone, port)
			delete(all, addr)
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
}

// start listens at an address. The caller holds the lock.
func (n *NodePorts) start(owner service.Ref, addr netip.AddrPort) *nodePort {
	p := &nodePort{owner: owner, ended: make(chan struct{})}
	p.server = httpserve.Server{
		Name: "the healthCheckNodePort of " + owner.String(), Address: addr.String(), Log: n.Log, Quiet: true,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { n.answer(w, p) }),
	}
	var ctx context.Context
	ctx, p.cancel = context.WithCancel(context.Background())
	go func() {
		defer close(p.ended)
		p.server.Run(ctx)
	}()
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
	owners := slices.Collect(maps.Keys(n.serving))
	n.mu.Unlock()
	for _, owner := range owners {
		n.stop(owner, nil)
	}
}

// answer sends what kube-proxy 1.36 sends, octet for octet.
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
		for _, addr := range slices.SortedFunc(maps.Keys(n.serving[owner]), netip.AddrPort.Compare) {
			if err := n.serving[owner][addr].server.Err(); err != nil {
				c := condition.HealthCheckNodePortNotServed.New("healthCheckNodePort %d is not served at %s: %v", addr.Port(), addr.Addr(), err)
				all = append(all, Problem{owner, c.At(owner.String())})
			}
		}
	}
	return all
}
