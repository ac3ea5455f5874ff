// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net"
	"net/http"
	"strconv"

	"beeline.io/beeline/internal/component"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/report/httpserve"
)

// Default addresses of the listeners: those of kube-proxy.
const (
	DefaultHealthzAddress = "0.0.0.0:10256"
	DefaultMetricsAddress = "127.0.0.1:10249"
)

// listeners are the agent's HTTP servers for probes and monitoring. An address that cannot be used is a
// condition, and is retried; it never stops the agent.
type listeners []*httpserve.Server

// newListeners returns the part with the listeners that the configuration enables.
func (a *Agent) newListeners(component.Env) (*component.Instance, error) {
	add := func(name, address string, handler http.Handler) {
		if address != "" {
			a.listeners = append(a.listeners, &httpserve.Server{Name: name, Address: address, Handler: handler, Connections: httpserve.NewConnections(maxConnections()), Log: a.log, Problem: condition.ListenFailed})
		}
	}
	add("health", a.config.HealthzAddress, a.metrics.Proxy.CountProbes(a.health.Handler()))
	add("health for probes", a.config.ProbeAddress, a.health.Handler())
	add("metrics", a.config.MetricsAddress, a.metricsHandler())
	return &component.Instance{Run: a.listeners.tasks(), Conditions: a.listeners.conditions}, nil
}

// tasks returns a task for each listener.
func (l listeners) tasks() (all []component.Task) {
	for _, server := range l {
		all = append(all, component.Task{Name: server.Name, Run: server.Run})
	}
	return all
}

// conditions returns a condition for each listener that cannot listen.
func (l listeners) conditions() (all condition.List) {
	for _, server := range l {
		if err := server.Err(); err != nil {
			all = append(all, server.Problem.New("%s is not served: %v", server.Name, err).At(server.Address))
		}
	}
	return all
}

// checkAddress validates the address of a listener: host:port with an IP address, or empty.
func checkAddress(flag, address string) error {
	if address == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(address)
	if err == nil && host != "" && net.ParseIP(host) == nil {
		err = fmt.Errorf("%q is not an IP address", host)
	}
	if n, wrong := strconv.ParseUint(port, 10, 16); err == nil && (wrong != nil || n == 0) {
		err = fmt.Errorf("%q is not a port from 1 to 65535", port)
	}
	if err != nil {
		return fmt.Errorf("--%s %q: give IP:PORT, or \"\" for none: %w", flag, address, err)
	}
	return nil
}
