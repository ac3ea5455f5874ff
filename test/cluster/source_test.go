// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/test/node"
)

// atMark waits until the agent's tables have all changes made before.
func (c *Cluster) atMark(t *testing.T, a *node.Agent) {
	t.Helper()
	mark, err := c.Mark(t.Context())
	must(t, err)
	must(t, mark.AwaitAgent(a))
}

// caller connects to a Service again and again.
type caller struct {
	stop          func()
	asked, failed atomic.Int64
	lastErr       atomic.Value
}

func (c *Cluster) call(t *testing.T, from string, n uint8) *caller {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	call := &caller{stop: func() { cancel(); <-done }}
	t.Cleanup(call.stop)
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			_, err := c.Lab.Host(from).Request(ctx, "tcp", fmt.Sprintf("10.96.0.%d:80", n), "hello")
			if ctx.Err() != nil {
				return
			}
			call.asked.Add(1)
			if err != nil {
				call.failed.Add(1)
				call.lastErr.Store(err)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	return call
}

// want stops the calls, and checks that all were answered.
func (call *caller) want(t *testing.T) {
	t.Helper()
	call.stop()
	if call.asked.Load() == 0 || call.failed.Load() > 0 {
		t.Errorf("%d of %d connections failed; the last: %v", call.failed.Load(), call.asked.Load(), call.lastErr.Load())
	}
	t.Logf("%d connections", call.asked.Load())
}

// wantError connects to the Service of number n, and checks the error.
func (c *Cluster) wantError(t *testing.T, from string, n uint8, want syscall.Errno) {
	t.Helper()
	if _, err := c.Lab.Host(from).Request(within(t, patience), "tcp", fmt.Sprintf("10.96.0.%d:80", n), ""); !errors.Is(err, want) {
		t.Errorf("%s to Service %d: %v, want %v", from, n, err, want)
	}
}

// An agent follows Services with selectors, the slices that controllers write for their pods, and labels (R1).
func TestAgentFollows(t *testing.T) {
	t.Parallel()
	c := New(t)
	c.createPodService(t, "b1", 20)
	a := c.startAgent(t, "node-a")
	c.atMark(t, a)
	c.wantAnswers(t, "a1", 20, "b1")

	status, err := a.Status()
	must(t, err)
	if s := status.Source; s.Kind != "kubernetes" || !strings.Contains(s.Location, c.Address().String()) || !s.Synced ||
		s.Connection == nil || !s.Connection.Connected || s.Errors != 0 {
		t.Errorf("source: %+v, connection: %+v", s, s.Connection)
	}

	// An endpoint that is not ready is removed, and added again.
	must(t, c.SetPodReady(t.Context(), "b1", false))
	c.wantEndpoints(t, "b1", map[string]string{"b1": "none node-b"})
	c.atMark(t, a)
	c.wantError(t, "a1", 20, syscall.ECONNREFUSED)
	must(t, c.SetPodReady(t.Context(), "b1", true))
	c.wantEndpoints(t, "b1", map[string]string{"b1": "ready node-b"})
	c.atMark(t, a)
	c.wantAnswers(t, "a1", 20, "b1")

	// R1: another proxy's, and ours again. R21: its address belongs to a ServiceCIDR.
	c.label(t, "b1", `"other"`)
	c.atMark(t, a)
	c.wantError(t, "a1", 20, syscall.EPERM)
	c.label(t, "b1", "null")
	c.atMark(t, a)
	c.wantAnswers(t, "a1", 20, "b1")

	// R4: the next agent takes over without a gap.
	calls := c.call(t, "a1", 20)
	must(t, a.Kill())
	must(t, a.Start())
	c.atMark(t, a)
	calls.want(t)
}

// label sets the label of R1 on a Service.
func (c *Cluster) label(t *testing.T, service, value string) {
	t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"labels":{"service.kubernetes.io/service-proxy-name":%s}}}`, value)
	_, err := c.Client.CoreV1().Services(Namespace).Patch(t.Context(), service, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	must(t, err)
}

// While the API server is away for 20 s, new connections use the last state. An agent that starts meanwhile
// waits, and later changes appear.
func TestAPIServerAway(t *testing.T) {
	t.Parallel()
	c := New(t)
	a := c.startAgent(t, "node-a")
	c.createPodService(t, "b1", 20)
	c.createPodService(t, "b2", 21)
	c.atMark(t, a)
	calls := c.call(t, "a1", 20)
	must(t, c.KillAPIServer()) // a graceful stop lasts until all watches have ended
	stopped := time.Now()
	must(t, a.WaitFor("aware that the API server is away", func(s *api.Status) bool { return !s.Source.Connection.Connected }))

	c.wantHealth(t, "node-a", 200, 200)

	// An agent that starts now takes over the attached programs.
	must(t, a.Kill())
	must(t, a.StartOnly())
	must(t, a.WaitFor("waiting for all kinds", func(s *api.Status) bool {
		return len(s.Source.Connection.WaitingFor) == 7 && s.Source.Connection.Error != "" && len(s.Attachments) == s.ExpectedAttachments
	}))
	c.wantHealth(t, "node-a", 200, 200)
	c.wantWaitingLeavesNothing(t, "node-b")

	time.Sleep(20*time.Second - time.Since(stopped))
	c.wantAnswers(t, "a1", 20, "b1")
	must(t, c.StartAPIServer(t.Context()))
	began := time.Now()
	must(t, c.Client.CoreV1().Services(Namespace).Delete(t.Context(), "b2", metav1.DeleteOptions{}))
	c.atMark(t, a)
	t.Logf("the API server was away for %v; the first change after that was in the tables within %v",
		began.Sub(stopped).Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	c.wantError(t, "a1", 21, syscall.EPERM)
	c.createPodService(t, "b3", 22) // waits until the controllers are back, too
	c.atMark(t, a)
	c.wantAnswers(t, "a1", 22, "b3")
	calls.want(t)
}

// wantWaitingLeavesNothing starts an agent on a fresh node while the API server is away: R4, it attaches
// nothing, and leaves nothing if it is stopped.
func (c *Cluster) wantWaitingLeavesNothing(t *testing.T, name string) {
	t.Helper()
	a := c.NewAgent(beeline, c.Lab.Host(name))
	must(t, a.StartOnly())
	t.Cleanup(func() { _ = a.Kill() }) // if the test fails early
	must(t, a.WaitFor("waiting", func(s *api.Status) bool { return s.Source.Connection.Error != "" }))
	status, err := a.Status()
	must(t, err)
	if len(status.Attachments) > 0 {
		t.Errorf("attached: %v", status.Attachments)
	}
	c.wantHealth(t, name, 503, 200)
	must(t, a.Stop())
	if out, err := a.CLI("status", "--pins"); err == nil {
		t.Errorf("%s has changed:\n%s", name, out)
	}
}

// Changes made while only a node is cut off from the API server appear when it is back.
func TestNodeCutOff(t *testing.T) {
	t.Parallel()
	c := New(t)
	a := c.startAgent(t, "node-a")
	c.createPodService(t, "b1", 20)
	c.createPodService(t, "b2", 21)
	c.atMark(t, a)
	calls := c.call(t, "a1", 20)
	join := c.cutOff(t, "node-a")
	must(t, c.Client.CoreV1().Services(Namespace).Delete(t.Context(), "b2", metav1.DeleteOptions{}))
	c.createPodService(t, "b3", 22)
	mark, err := c.Mark(t.Context())
	must(t, err)
	// Only the agent's own keepalive ends the connection: after 30 s of silence, with 15 s for the reply
	// and 10 s for a new connection.
	for connected, end := true, time.Now().Add(3*time.Minute); connected; time.Sleep(pollInterval) {
		s, err := a.Status()
		must(t, err)
		if connected = s.Source.Connection.Connected; connected && time.Now().After(end) {
			t.Fatal("the agent has not noticed that it is cut off")
		}
	}
	tables, err := a.Tables()
	must(t, err)
	if !slices.ContainsFunc(tables.Services, func(s api.Service) bool { return s.Name == "b2" }) {
		t.Error("the agent is not cut off")
	}
	c.wantAnswers(t, "a1", 21, "b2")
	join()
	must(t, mark.AwaitAgent(a))
	c.wantError(t, "a1", 21, syscall.EPERM)
	c.wantAnswers(t, "a1", 22, "b3")
	calls.want(t)
}

// cutOff drops what the API server sends to a node, until the returned function is called. Pods have other
// addresses.
func (c *Cluster) cutOff(t *testing.T, host string) (join func()) {
	t.Helper()
	fabric, err := c.Lab.Host("fabric").Netlink()
	must(t, err)
	t.Cleanup(fabric.Close)
	address := netlink.NewIPNet(c.Lab.Host(host).Addr4.AsSlice())
	routes, err := fabric.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Dst: address}, netlink.RT_FILTER_DST)
	must(t, err)
	if len(routes) != 1 {
		t.Fatalf("routes from the API server to %s: %v", host, routes)
	}
	must(t, fabric.RouteReplace(&netlink.Route{Type: syscall.RTN_BLACKHOLE, Dst: address}))
	return func() { must(t, fabric.RouteReplace(&routes[0])) }
}
