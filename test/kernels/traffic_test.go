// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// nodePort is that of the Service.
const nodePort = 30080

// patience bounds all waiting. No result depends on it; emulated machines need some of it.
const patience = time.Minute

// startAgents starts the agents of a lab's two nodes, whose edge is at XDP on the first and at tc on the other. The
// first migrates the tables of the datapath that was opened there.
func startAgents(t *testing.T, l *lab.Lab) (agents []*node.Agent) {
	t.Helper()
	folder := &node.Folder{Path: t.TempDir()}
	service, pods := node.Service("web", 1), []*lab.Host{l.Host("a1"), l.Host("b1")}
	service.Spec.Type, service.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, nodePort
	must(t, folder.Put("cluster", node.Cluster(l)...))
	slices := node.Slices("web", pods...)
	must(t, folder.Put("web", service, slices[0], slices[1]))
	must(t, l.StartServers())
	must(t, l.ReadyForXDP())
	for i, mode := range []string{"xdp", "tc"} {
		a := &node.Agent{Host: l.Nodes()[i], Program: program, Manifests: folder.Path, MaxFlows: 16384, EdgeMode: mode,
			Flags: []string{"--pod-devices=auto"}, Log: &node.Log{}}
		t.Cleanup(func() {
			if err := a.Kill(); err != nil {
				t.Errorf("the agent of %s ended before it was killed: %v", a.Host.Name, err)
			}
			if t.Failed() {
				t.Logf("the agent of %s printed:\n%s", a.Host.Name, a.Log)
			}
		})
		must(t, a.Start())
		must(t, a.WaitFor("all pods have the shortcut", hasPods(a.Host.Pods())))
		agents = append(agents, a)
	}
	return agents
}

// hasPods reports whether the pod shortcut has both addresses of each pod.
func hasPods(pods []*lab.Host) func(*api.Status) bool {
	return func(s *api.Status) bool {
		var have []netip.Addr
		for _, d := range s.Pods.Devices {
			if d.Shortcut {
				have = append(have, d.PodAddresses...)
			}
		}
		return !slices.ContainsFunc(pods, func(p *lab.Host) bool { return !slices.Contains(have, p.Addr4) || !slices.Contains(have, p.Addr6) })
	}
}

// wantTraffic sends what each shortcut handles, and checks that each has counted packets: from outside to NodePorts,
// from pods to a ClusterIP, and between pods.
func wantTraffic(t *testing.T, l *lab.Lab, agents []*node.Agent) {
	t.Helper()
	service := node.ClusterIPs(1)
	for family, clusterIP := range service {
		wantBoth(t, l.Host("client"), addressOf(agents[0].Host, family), nodePort)
		wantBoth(t, l.Host("client"), addressOf(agents[1].Host, family), nodePort)
		wantBoth(t, l.Host("a2"), netip.MustParseAddr(clusterIP), 80)
		for _, to := range []string{"a3", "b2"} {
			if pod := ask(t, l.Host("a2"), netip.AddrPortFrom(addressOf(l.Host(to), family), lab.PortTCP)); pod != to {
				t.Errorf("%s answers instead of %s", pod, to)
			}
		}
	}
	for i, a := range agents {
		s, err := a.Status()
		must(t, err)
		if c := s.Edge.Counters; c["new"] == 0 || c["established"] == 0 || c["reply"] == 0 || i == 0 && c["to_tc"]*10 > c["established"] {
			t.Errorf("%s, --edge-mode=%s: %v", a.Host.Name, a.EdgeMode, c)
		}
		if c := s.Pods.Packets; c["path_in"] == 0 || c["path_out"] == 0 || i == 0 && c["path_local"] == 0 {
			t.Errorf("%s: the pods' packets: %v", a.Host.Name, c)
		}
	}
	stats, err := bpf.ReadSocketStats(agents[0].BPFFS())
	must(t, err)
	var established uint64
	for _, s := range stats.Services {
		established += s.Established
	}
	if established < 4 { // both backends by both families
		t.Errorf("%d connections to the Service are counted at sockets: %+v", established, stats.Services)
	}
}

func addressOf(h *lab.Host, family int) netip.Addr { return []netip.Addr{h.Addr4, h.Addr6}[family] }

// wantBoth connects to a Service until both of its backends have answered.
func wantBoth(t *testing.T, from *lab.Host, addr netip.Addr, port uint16) {
	t.Helper()
	to, seen := netip.AddrPortFrom(addr, port), map[string]bool{}
	for range 60 { // one backend does not answer in 2 of 10^18 cases
		if seen[ask(t, from, to)] = true; seen["a1"] && seen["b1"] {
			return
		}
	}
	t.Errorf("%s to %s: of the backends a1 and b1 there have answered %v", from.Name, to, seen)
}

// ask connects once, and returns the pod that answers.
func ask(t *testing.T, from *lab.Host, to netip.AddrPort) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	answer, err := from.Request(ctx, "tcp", to.String(), "hello")
	must(t, err)
	return answer.Pod
}
