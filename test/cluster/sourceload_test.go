// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/test/node"
)

const (
	loadServices  = 5000
	loadEndpoints = 10
	// loadMost is what the agent may need with that many, in MiB of resident memory, some time after it has
	// read them. It needs 78: a second copy of the endpoints, or a table that is mapped as a whole, is 20
	// more. The Go runtime's memory for each CPU beyond two is added.
	loadMost    = 95
	loadMostCPU = 2
)

// An agent reads a large cluster; the test prints its memory and time.
func TestLargeCluster(t *testing.T) {
	if testing.Short() {
		t.Skip("ten thousand objects take a minute or two: `make test-full` makes them")
	}
	t.Parallel()
	c := New(t)
	began := time.Now()
	must(t, c.createLoad(t.Context()))
	t.Logf("%d Services with %d endpoints each created in %v", loadServices, loadEndpoints, time.Since(began).Round(time.Second))

	began = time.Now()
	a := c.startAgent(t, "node-a")
	ready := time.Since(began)
	t.Logf("after the start: ready within %v, %s", ready.Round(time.Millisecond), memory(t, a.PID()))
	status, err := a.Status()
	must(t, err)
	if status.Counts.Services < loadServices || status.Counts.Backends < loadServices*loadEndpoints {
		t.Errorf("in the tables: %+v", status.Counts)
	}

	t.Logf("one change among these is served %v after the API server has accepted it", c.timeChange(t, 20).Round(100*time.Microsecond))
	// Memory for the first reading returns to the system.
	most := loadMost + loadMostCPU*max(0, runtime.NumCPU()-2)
	eventually(t, fmt.Sprintf("the agent needs %d MiB at most", most), func() error {
		text := memory(t, a.PID())
		var resident int
		if _, err := fmt.Sscanf(text, "%d MiB", &resident); err != nil || resident > most {
			return fmt.Errorf("%s (%v)", text, err)
		}
		return nil
	})
	t.Logf("some time after that: %s", memory(t, a.PID()))

	must(t, c.KillAPIServer())
	must(t, a.WaitFor("aware that the API server is away", func(s *api.Status) bool { return !s.Source.Connection.Connected }))
	must(t, c.StartAPIServer(t.Context()))
	c.timeChange(t, 21)
	t.Logf("after a restart of the API server: %s", memory(t, a.PID()))
}

// timeChange measures the time from the creation of a Service's last object until a pod reaches a backend of
// it.
func (c *Cluster) timeChange(t *testing.T, n uint8) time.Duration {
	t.Helper()
	name := fmt.Sprintf("change-%d", n)
	_, err := c.CreateService(t.Context(), NewService(name, n, nil))
	must(t, err)
	_, err = c.Client.DiscoveryV1().EndpointSlices(Namespace).Create(t.Context(), node.Slices(name, c.Lab.Host("b1"))[0], metav1.CreateOptions{})
	must(t, err)
	began, ctx := time.Now(), within(t, patience)
	for {
		_, err := c.Lab.Host("a1").Request(ctx, "tcp", fmt.Sprintf("10.96.0.%d:80", n), "hello")
		took := time.Since(began)
		if err == nil {
			return took
		}
		if took > patience {
			t.Fatalf("Service %s is not served after %v: %v", name, took, err)
		}
	}
}

// createLoad creates Services without selectors, and their slices.
func (c *Cluster) createLoad(ctx context.Context) error {
	const workers = 16
	var group sync.WaitGroup
	failed := make([]error, workers)
	for w := range workers {
		group.Go(func() {
			for i := w; i < loadServices && failed[w] == nil; i += workers {
				failed[w] = c.createLoaded(ctx, i)
			}
		})
	}
	group.Wait()
	return errors.Join(failed...)
}

func (c *Cluster) createLoaded(ctx context.Context, i int) error {
	name := fmt.Sprintf("load-%d", i)
	service := NewService(name, 1, nil)
	single := corev1.IPFamilyPolicySingleStack
	service.Spec.IPFamilyPolicy, service.Spec.IPFamilies = &single, []corev1.IPFamily{corev1.IPv4Protocol}
	service.Spec.ClusterIP, service.Spec.ClusterIPs = "", nil
	if _, err := c.Client.CoreV1().Services(Namespace).Create(ctx, service, metav1.CreateOptions{}); err != nil {
		return err
	}
	tcp, number, portName := corev1.ProtocolTCP, int32(8080), service.Spec.Ports[0].Name
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: Namespace, Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &portName, Protocol: &tcp, Port: &number}},
	}
	for j := range loadEndpoints {
		host, n, ok := c.Lab.Host("node-b").Name, i*loadEndpoints+j, true
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{fmt.Sprintf("10.%d.%d.%d", 100+n>>16, n>>8&255, n&255)},
			Conditions: discoveryv1.EndpointConditions{Ready: &ok, Serving: &ok},
			NodeName:   &host,
		})
	}
	_, err := c.Client.DiscoveryV1().EndpointSlices(Namespace).Create(ctx, slice, metav1.CreateOptions{})
	return err
}

// memory describes a process's memory: "N MiB resident (N of its own, N of files and tables), N MiB at most so
// far".
func memory(t *testing.T, pid int) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must(t, err)
	var resident, own, files, most int
	for line := range strings.Lines(string(text)) {
		fmt.Sscanf(line, "VmRSS: %d kB", &resident)
		fmt.Sscanf(line, "RssAnon: %d kB", &own)
		fmt.Sscanf(line, "RssFile: %d kB", &files)
		fmt.Sscanf(line, "VmHWM: %d kB", &most)
	}
	return fmt.Sprintf("%d MiB resident (%d of its own, %d of files and tables), %d MiB at most so far", resident>>10, own>>10, files>>10, most>>10)
}
