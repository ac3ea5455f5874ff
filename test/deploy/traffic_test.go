// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// clusterIP is the address of Service number i.
func clusterIP(i uint8) string { return node.ClusterIPs(i)[0] + ":80" }

// nodePort is the address of Service number i at the node.
func (n *labNode) nodePort(i uint8) string {
	return netip.AddrPortFrom(n.host.Addr4, 30000+uint16(i)).String()
}

// service creates Service number i on TCP and UDP port 80 with a NodePort, with one backend.
func (n *labNode) service(name string, i uint8, backend string) error {
	service, slices := n.objects(name, i, backend)
	if err := n.server.Create(n.t.Context(), service); err != nil {
		return err
	}
	for _, slice := range slices {
		if err := n.server.Create(n.t.Context(), slice); err != nil {
			return err
		}
	}
	return nil
}

func (n *labNode) objects(name string, i uint8, backend string) (*corev1.Service, []*discoveryv1.EndpointSlice) {
	service, slices := node.Service(name, i), node.Slices(name, n.server.Lab.Host(backend))
	node.SetPorts(service, slices,
		node.Port{Name: "tcp", Protocol: corev1.ProtocolTCP, Port: 80, Target: lab.PortTCP},
		node.Port{Name: "udp", Protocol: corev1.ProtocolUDP, Port: 80, Target: lab.PortUDP})
	service.Spec.Type = corev1.ServiceTypeNodePort
	for p := range service.Spec.Ports {
		service.Spec.Ports[p].NodePort = 30000 + int32(i)
	}
	return service, slices
}

// removeBackendOf connects a UDP socket of a pod to a new Service, and has another backend replace the socket's.
// The result reports nil once the agent has ended the socket.
func (n *labNode) removeBackendOf(name string, i uint8) (ended func() error) {
	n.t.Helper()
	must(n.t, n.service(name, i, "b1"))
	n.wantAnswer("a1", clusterIP(i), "b1")
	conn, err := n.server.Lab.Host("a1").Dial(n.t.Context(), "udp", clusterIP(i))
	must(n.t, err)
	n.t.Cleanup(func() { conn.Close() })
	_, slices := n.objects(name, i, "b2")
	for _, slice := range slices {
		must(n.t, n.server.Update(n.t.Context(), slice))
	}
	n.wantAnswer("a1", clusterIP(i), "b2")
	return func() error {
		_, err := conn.Write([]byte("hello"))
		if errors.Is(err, unix.EDESTADDRREQ) || errors.Is(err, unix.ECONNABORTED) {
			return nil
		}
		return fmt.Errorf("write to the socket: %v", err)
	}
}

// gcPasses returns how many times the agent has looked for sockets to end.
func (n *labNode) gcPasses() uint64 {
	n.t.Helper()
	status, err := n.agent.Status()
	must(n.t, err)
	return status.SocketTermination.Passes
}

// awaitGC waits until the agent has looked for sockets twice since a backend was removed; `before` is gcPasses before
// that.
func (n *labNode) awaitGC(before uint64) {
	n.t.Helper()
	until := time.Now().Add(3 * time.Second / 2) // the second pass is a second after the first
	must(n.t, n.agent.WaitFor("past its second GC pass", func(s *api.Status) bool {
		return s.SocketTermination.Passes > before && !s.SocketTermination.Pending && time.Now().After(until)
	}))
}

// wantAnswer waits until a host gets its answers from a pod, at both ports: the agent writes one after the other.
func (n *labNode) wantAnswer(from, address, pod string) {
	n.t.Helper()
	eventually(n.t, fmt.Sprintf("%s asks %s and %s answers", from, address, pod), func() error {
		for _, network := range []string{"tcp", "udp"} {
			got, err := n.requestFrom(from, network, address)
			if err == nil && got != pod {
				err = fmt.Errorf("%s answers", got)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", network, err)
			}
		}
		return nil
	})
}

func (n *labNode) requestFrom(from, network, address string) (pod string, err error) {
	ctx, cancel := context.WithTimeout(n.t.Context(), 2*time.Second)
	defer cancel()
	answer, err := n.server.Lab.Host(from).Request(ctx, network, address, "hello")
	return answer.Pod, err
}

// wantNoPins: the node's BPF file system is empty but for the kernel's own files.
func (n *labNode) wantNoPins() {
	n.t.Helper()
	entries, err := os.ReadDir(n.host.BPFFS)
	must(n.t, err)
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".debug") {
			n.t.Errorf("%s is left in the BPF file system", e.Name())
		}
	}
}

// asKubelet asks as a probe of the DaemonSet does: its host, or the node's address.
func (n *labNode) asKubelet(probe *corev1.Probe) error {
	get := probe.HTTPGet
	return n.probe(fmt.Sprintf("%s:%d", cmp.Or(get.Host, n.host.Addr4.String()), get.Port.IntValue()), get.Path)
}

// probe asks on the node, and returns an error for an answer other than 200.
func (n *labNode) probe(at, path string) error {
	ctx, cancel := context.WithTimeout(n.t.Context(), 5*time.Second)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		return n.host.Dial(ctx, network, address)
	}}}
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at+path, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the answer is %s", response.Status)
	}
	return nil
}
