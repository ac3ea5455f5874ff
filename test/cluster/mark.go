// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/test/controlplane"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// A Mark is a change of a Service that nothing else uses. A proxy sees all Services in the order of their
// changes, and so all EndpointSlices, and applies them together. So a proxy whose tables have the mark has
// every earlier change of a Service and of an EndpointSlice. It does not cover Nodes, or what controllers have
// still to write. The next mark replaces it, so wait for one before making another.
type Mark int64

const markService = "mark"

// port is the name of the Service's port. There is a backend only if both Service and EndpointSlice have it.
func (m Mark) port() string { return fmt.Sprintf("m%d", m) }

// backends are addresses of the range for tests of network devices (RFC 2544, RFC 5180), which the lab does not
// use.
func (m Mark) backends() map[discoveryv1.AddressType]string {
	high, low := int64(m)>>8&0xff, int64(m)&0xff
	return map[discoveryv1.AddressType]string{
		discoveryv1.AddressTypeIPv4: fmt.Sprintf("198.18.%d.%d", high, low),
		discoveryv1.AddressTypeIPv6: fmt.Sprintf("2001:2::%x:%x", high+1, low+1),
	}
}

// Mark makes the next mark. It writes concurrently, because the order does not matter.
func (c *Cluster) Mark(ctx context.Context) (Mark, error) {
	c.marking.Lock()
	defer c.marking.Unlock()
	c.mark++
	m := c.mark
	service, slices := NewService(markService, 254, nil), node.Slices(markService)
	service.Spec.Ports[0].Name = m.port()
	errs := make([]error, 1+len(slices))
	var writing sync.WaitGroup
	writing.Go(func() { errs[0] = put(ctx, c.Client.CoreV1().Services(Namespace), service) })
	for i, slice := range slices {
		name := m.port()
		slice.Ports[0].Name = &name
		slice.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{m.backends()[slice.AddressType]}}}
		writing.Go(func() { errs[1+i] = put(ctx, c.Client.DiscoveryV1().EndpointSlices(Namespace), slice) })
	}
	writing.Wait()
	if err := errors.Join(errs...); err != nil {
		return m, fmt.Errorf("%v: %w", m, err)
	}
	return m, nil
}

func (m Mark) String() string { return fmt.Sprintf("mark %d", int64(m)) }

// writer is a client for objects of one kind.
type writer[T any] interface {
	Create(context.Context, T, metav1.CreateOptions) (T, error)
	Update(context.Context, T, metav1.UpdateOptions) (T, error)
}

// put updates an object, or creates it. Without a resource version an update replaces any version.
func put[T any](ctx context.Context, client writer[T], object T) error {
	_, err := client.Update(ctx, object, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = client.Create(ctx, object, metav1.CreateOptions{})
	}
	return err
}

// Await waits until kube-proxy's rules of both families have the mark.
func (p *KubeProxy) Await(ctx context.Context, m Mark) error {
	var targets []string
	for _, addr := range m.backends() {
		targets = append(targets, controlplane.Target(addr, lab.PortTCP))
	}
	return p.AwaitRules(ctx, fmt.Sprintf("at %v", m), targets...)
}

// AwaitAgent waits until a Beeline agent's tables have the mark, and what it applies together with it: it
// writes changed frontends before new ones.
func (m Mark) AwaitAgent(a *node.Agent) error {
	if err := a.WaitForTables(m.String(), m.inTables); err != nil {
		return err
	}
	return a.WaitFor(fmt.Sprintf("done with %v", m), func(s *api.Status) bool { return s.Sync.Pending == 0 })
}

func (m Mark) inTables(t *api.Tables) bool {
	found := 0
	for _, backend := range t.Backends {
		for _, addr := range m.backends() {
			if backend.Address == net.JoinHostPort(addr, strconv.Itoa(lab.PortTCP)) {
				found++
			}
		}
	}
	return found == len(m.backends())
}
