// SPDX-License-Identifier: Apache-2.0

// Package changes measures how long a change takes until a new connection sees it.
package changes

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/test/controlplane"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

const partName = "changes"

// Part is the part changes.
var Part = harness.Part{Name: partName, Text: "one change until a new connection sees it: from files, from an API server, and with kube-proxy", Run: runChanges, Print: printChanges}

// A pod's new connection shows it: it reaches the Service's one endpoint.
const (
	scenarioFirst  = "start"                                 // from the start of the process to the first such connection
	scenarioServed = "one change until a connection sees it" // from the beginning of the write
)

// The sizes that are measured.
var sizes = []struct{ services, endpoints int }{{harness.MostServices, harness.EndpointsPerService}, {1000, 250}}

// How often and how closely changes follow each other. kube-proxy's default is to write its rules at most once
// a second: a change that follows sooner would wait for that.
const (
	agentChanges = 100
	agentPause   = 50 * time.Millisecond
	proxyChanges = 20
	proxyPause   = 2 * time.Second
	proxyApart   = 5 * time.Millisecond // its changes take long, and connections would use its CPU time
)

// The Service that changes: its backend is one of two servers.
const (
	changing       = "changing"
	changingNumber = 103
)

var changingPods = [2]string{"b1", "b2"}

func runChanges(ctx context.Context, b *harness.Bench) error {
	missing := controlplane.Find(b.ControlPlane)
	for _, size := range sizes {
		if b.Smoke {
			size.services, size.endpoints = 50, 3
		}
		if err := measure(ctx, b, size.services, size.endpoints, missing == nil); err != nil {
			return fmt.Errorf("%d Services with %d endpoints: %w", size.services, size.endpoints, err)
		}
		if b.Smoke {
			return nil
		}
	}
	return nil
}

// measure measures all sides with one size, one after the other.
func measure(ctx context.Context, b *harness.Bench, services, endpoints int, withAPI bool) (err error) {
	w, err := harness.NewWorld()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.End()) }()
	if err := w.StartServers(); err != nil {
		return err
	}
	m := &harness.ServiceFolder{Folder: w.Folder, Services: services, Endpoints: endpoints, Families: []string{"IPv4"}, Protocol: corev1.ProtocolTCP}
	c := &changesRun{Bench: b, world: w, many: m}
	if err := errors.Join(m.Write(), c.writeFile(ctx, w.Host(changingPods[0]))); err != nil {
		return err
	}
	agent := &node.Agent{Host: w.Host("node-a"), Program: b.Program, Manifests: w.Folder}
	if err := c.agent(ctx, "Beeline, files", agent, c.writeFile); err != nil {
		return err
	}
	if !withAPI {
		return nil
	}
	api, err := controlplane.Start(ctx, w.Lab, b.ControlPlane)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, api.Stop()) }()
	return c.withAPI(ctx, api)
}

// changesRun is one size of the part.
type changesRun struct {
	*harness.Bench
	world *harness.World
	many  *harness.ServiceFolder
}

// withAPI measures the sides that follow an API server, with the same objects.
func (c *changesRun) withAPI(ctx context.Context, api *controlplane.ControlPlane) error {
	objects, err := objectsOf(c.many)
	if err != nil {
		return err
	}
	service, slice := changingObjects(c.world.Host(changingPods[0]))
	if err := api.Create(ctx, append(append(node.Cluster(c.world.Lab), service, slice), objects...)...); err != nil {
		return err
	}
	write := func(ctx context.Context, backend *lab.Host) error {
		_, slice := changingObjects(backend)
		return api.Update(ctx, slice)
	}
	agent := &node.Agent{Host: c.world.Host("node-a"), Program: c.Program, Kubeconfig: api.Kubeconfig(controlplane.UserAdmin)}
	if err := c.agent(ctx, "Beeline, API server", agent, write); err != nil {
		return err
	}
	host := c.world.Host("node-b")
	begin := time.Now()
	proxy, err := api.StartProxy(host, controlplane.NFTables)
	if err != nil {
		return err
	}
	side := changesSide{
		name: harness.ProxySides + "nftables, API server", client: c.world.Host("b3"), pid: proxy.PID(), begin: begin,
		write: write, count: proxyChanges, pause: proxyPause, apart: proxyApart,
	}
	return errors.Join(c.measure(ctx, side), proxy.Stop())
}

// agent measures an agent, and ends it.
func (c *changesRun) agent(ctx context.Context, name string, a *node.Agent, write func(context.Context, *lab.Host) error) error {
	c.world.Agents = append(c.world.Agents, a)
	begin := time.Now()
	if err := a.StartOnly(); err != nil {
		return err
	}
	side := changesSide{
		name: name, client: c.world.Host("a1"), pid: a.PID(), begin: begin, write: write, count: agentChanges, pause: agentPause,
	}
	if err := c.measure(ctx, side); err != nil {
		return err
	}
	if err := a.Stop(); err != nil {
		return err
	}
	_, err := a.CLI("cleanup")
	return err
}

// writeFile changes the Service's backend in its file.
func (c *changesRun) writeFile(_ context.Context, backend *lab.Host) error {
	service, slice := changingObjects(backend)
	return node.WriteManifest(c.world.Folder, changing+".yaml", service, slice)
}

// changingObjects are the Service that changes, with IPv4 only, and its endpoint.
func changingObjects(backend *lab.Host) (*corev1.Service, *discoveryv1.EndpointSlice) {
	service, slices := node.Service(changing, changingNumber), node.Slices(changing, backend)
	single := corev1.IPFamilyPolicySingleStack
	service.Spec.IPFamilyPolicy, service.Spec.IPFamilies = &single, []corev1.IPFamily{corev1.IPv4Protocol}
	service.Spec.ClusterIPs = []string{service.Spec.ClusterIP}
	for _, slice := range slices {
		if slice.AddressType == discoveryv1.AddressTypeIPv4 {
			return service, slice
		}
	}
	panic("a pod without an IPv4 address")
}

// objectsOf are those that write writes, in a form for an API server.
func objectsOf(m *harness.ServiceFolder) (all []runtime.Object, err error) {
	for number := range m.Services {
		service, slices, err := objectOf(m, number)
		if err != nil {
			return nil, err
		}
		single := corev1.IPFamilyPolicySingleStack
		if service.Spec.IPFamilyPolicy = &single; len(m.Families) > 1 {
			service.Spec.IPFamilyPolicy = nil
		}
		all = append(all, harness.Objects(service, slices)...)
	}
	return all, nil
}
