// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/report/condition"
)

// R34, R35, without an API server: clients of all classes reach the agent's own ports through the edge and the
// socket hooks, no other program gets these ports, and a datapath that does not serve is never reported as
// healthy: the self-probe notices a lost frontend, and that it is back.
func TestHealthPortsAndSelfProbe(t *testing.T) {
	const healthPort = 32000
	w := startWorld(t, "--self-probe", "--audit-interval=8s")
	s, all := w.public("a1", "b1")
	s.Spec.Type, s.Spec.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal
	s.Spec.HealthCheckNodePort = healthPort
	w.apply("web", objects(s, all)...)
	w.wantServed("tcp", addresses(w.Host("node-a"), nodePort)[0], "a1") // packets pass the edge
	for _, from := range []string{"client", "node-a", "a2", "b1"} {
		for _, at := range addresses(w.Host("node-a"), healthPort) {
			w.eventually("the healthCheckNodePort answers "+from, func() bool {
				status, body, err := w.get(from, at, "/")
				return err == nil && status == 200 && strings.Contains(body, `"localEndpoints": 1`)
			})
		}
		if status, body, err := w.get(from, addresses(w.Host("node-a"), 10256)[0], "/healthz"); status != 200 || !strings.Contains(body, `"nodeEligible":true,"healthy":true`) {
			t.Errorf("/healthz answers %s: %d %s %v", from, status, body, err)
		}
	}
	if other, err := w.Host("node-a").Listen("tcp", fmt.Sprintf("[::]:%d", healthPort)); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("another program binds the port: %v", err)
		other.Close()
	}

	w.deleteProbeFrontends()
	w.eventually("/healthz notices", func() bool { return w.healthzIs(503) })
	for path, want := range map[string]string{"/healthz": "SelfProbeFailed", "/livez": `"healthy":true`} {
		if _, body, err := w.get("client", addresses(w.Host("node-a"), 10256)[0], path); !strings.Contains(body, want) {
			t.Errorf("%s answers %s %v, want %q", path, body, err, want)
		}
	}
	if status, body, _ := w.get("client", addresses(w.Host("node-a"), healthPort)[0], "/"); status != 503 || !strings.Contains(body, `"serviceProxyHealthy": false`) {
		t.Errorf("the healthCheckNodePort answers %d %s", status, body)
	}
	if c := w.status().Conditions; !c.Has(condition.SelfProbeFailed) {
		t.Errorf("the conditions are\n%s", c)
	}
	w.eventually("the audit heals", func() bool { return w.healthzIs(200) })
	w.must(w.agent.WaitFor("well", func(s *api.Status) bool { return !s.Conditions.Has(condition.SelfProbeFailed) }))
}

func (w *world) healthzIs(want int) bool {
	status, _, _ := w.get("client", addresses(w.Host("node-a"), 10256)[0], "/healthz")
	return status == want
}

// get requests a URL of a node from a host.
func (w *world) get(from string, at netip.AddrPort, path string) (status int, body string, err error) {
	client := http.Client{Transport: &http.Transport{DialContext: w.Host(from).Dial, DisableKeepAlives: true}}
	response, err := client.Get("http://" + at.String() + path)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}

// deleteProbeFrontends removes the frontends of the agent's own Service from the table, as a faulty program
// could.
func (w *world) deleteProbeFrontends() {
	w.t.Helper()
	m, err := ebpf.LoadPinnedMap(bpf.TablePath(w.agent.BPFFS(), bpf.SockMapFrontends), nil)
	w.must(err)
	defer m.Close()
	var found [][]byte
	key, value := make([]byte, m.KeySize()), make([]byte, m.ValueSize())
	for entries := m.Iterate(); entries.Next(&key, &value); {
		if bytes.Contains(key, net.IPv4(127, 181, 66, 76).To4()) || bytes.HasPrefix(key, net.ParseIP("100::b181:66:76")) {
			found = append(found, bytes.Clone(key))
		}
	}
	if len(found) != 2 {
		w.t.Fatalf("the table has %d frontends of the self-probe, want one of each family", len(found))
	}
	for _, key := range found {
		w.must(m.Delete(key))
	}
}
