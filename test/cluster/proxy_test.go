// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"
)

// kube-proxy on node-a serves the pods of node-a: a Service with a selector leads to the lab's pods. It
// continues to serve while the API server is away, and applies later changes.
func TestKubeProxy(t *testing.T) {
	t.Parallel()
	c := New(t)
	proxy, err := c.StartKubeProxy(t.Context(), c.Lab.Host("node-a"))
	must(t, err)
	c.createPodService(t, "b1", 20)
	c.awaitProxy(t, proxy)
	c.wantAnswers(t, "a1", 20, "b1")

	// node-b has no proxy, so the address is unknown there.
	if _, err := c.Lab.Host("b2").Request(within(t, 10*time.Second), "tcp", "10.96.0.20:80", ""); !errors.Is(err, syscall.ENETUNREACH) {
		t.Errorf("b2 without a proxy: %v, want ENETUNREACH", err)
	}

	must(t, c.StopAPIServer())
	if _, err := c.Lab.Host("fabric").Dial(t.Context(), "tcp", c.Address().String()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("the API server is stopped, but a connection ends with %v", err)
	}
	c.wantAnswers(t, "a1", 20, "b1")
	must(t, c.StartAPIServer(t.Context()))
	c.createPodService(t, "b2", 21)
	c.awaitProxy(t, proxy)
	c.wantAnswers(t, "a1", 21, "b2")

	// Its rules stay when it ends, and follow the cluster when it is back.
	must(t, proxy.Kill())
	c.wantAnswers(t, "a1", 20, "b1")
	must(t, c.Client.CoreV1().Services(Namespace).Delete(t.Context(), "b1", metav1.DeleteOptions{}))
	must(t, proxy.Start(t.Context()))
	if _, err := c.Lab.Host("a1").Request(within(t, 2*time.Second), "tcp", "10.96.0.20:80", ""); err == nil {
		t.Error("a removed Service still answers")
	}
	c.wantAnswers(t, "a1", 21, "b2")
}

// When a program ends, the error has its output, and is no timeout.
func TestKubeProxyThatEnds(t *testing.T) {
	t.Parallel()
	c := New(t)
	_, err := c.StartKubeProxy(t.Context(), c.Lab.Host("node-a"), func(config *kubeproxy.KubeProxyConfiguration) {
		config.Mode = "carrier pigeons"
	})
	if err == nil || !strings.Contains(err.Error(), "carrier pigeons") {
		t.Errorf("StartKubeProxy: %v, want its output", err)
	}
}

// createPodService creates a Service for one pod of the lab, and waits for its
// slices.
func (c *Cluster) createPodService(t *testing.T, pod string, n uint8) {
	t.Helper()
	_, err := c.CreateService(t.Context(), NewService(pod, n, map[string]string{LabelPod: pod}))
	must(t, err)
	c.wantEndpoints(t, pod, map[string]string{pod: "ready " + c.Lab.Host(pod).Node.Name})
}

func (c *Cluster) awaitProxy(t *testing.T, proxy *KubeProxy) {
	t.Helper()
	mark, err := c.Mark(t.Context())
	must(t, err)
	must(t, proxy.Await(t.Context(), mark))
}

// wantAnswers sends to the Service of number n from a host, in both families.
func (c *Cluster) wantAnswers(t *testing.T, from string, n uint8, pod string) {
	t.Helper()
	for _, ip := range []string{fmt.Sprintf("10.96.0.%d", n), fmt.Sprintf("fd00:96::%x", n)} {
		address := net.JoinHostPort(ip, "80")
		answer, err := c.Lab.Host(from).Request(within(t, patience), "tcp", address, "hello")
		if err != nil || answer.Pod != pod {
			t.Errorf("%s to %s: answer from %q, %v, want %s", from, address, answer.Pod, err, pod)
		}
	}
}
