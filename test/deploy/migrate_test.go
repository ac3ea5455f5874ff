// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/test/controlplane"
)

// migrates follows docs/operate/migrate.md: the container starts beside kube-proxy and says that the ports are
// taken, and at the end kube-proxy's rules are gone, and Services are served.
func (n *labNode) migrates(t *testing.T) {
	must(t, n.service("moved", 30, "b1"))
	proxy, err := n.server.StartProxy(n.host, controlplane.NFTables)
	must(t, err)
	must(t, proxy.AwaitRules(t.Context(), "rules of the Service", "10.96.0.30"))
	n.wantAnswer("a1", clusterIP(30), "b1")

	must(t, n.start())
	must(t, n.agent.WaitFor("without its ports", func(s *api.Status) bool { return notServed(s) == 2 }))
	n.wantAnswer("a1", clusterIP(30), "b1")
	n.wantAnswer("client", n.nodePort(30), "b1")
	n.answersItsProbes(t)

	must(t, proxy.Stop())
	program, err := controlplane.Program()
	must(t, err)
	out, err := n.host.Command(t.Context(), program, "kube-proxy", "--cleanup").CombinedOutput()
	if err != nil {
		t.Errorf("kube-proxy --cleanup: %v: %s", err, out)
	}
	rules, err := proxy.Rules(t.Context())
	must(t, err)
	if strings.Contains(rules, "kube-proxy") || strings.Contains(rules, "KUBE-") {
		t.Errorf("rules of kube-proxy are left:\n%s", rules)
	}
	n.wantAnswer("a1", clusterIP(30), "b1")
	n.wantAnswer("client", n.nodePort(30), "b1")
	must(t, n.agent.WaitFor("serving at its ports", func(s *api.Status) bool { return notServed(s) == 0 }))
	if errs := severe(n); len(errs) > 0 {
		t.Errorf("the status has %q", errs)
	}
	n.stop()
}

// answersItsProbes: the kubelet's probes succeed because of the agent, not of kube-proxy, which has port 10256. So an
// update to a version that does not start stops.
func (n *labNode) answersItsProbes(t *testing.T) {
	if err := n.probe("127.0.0.1:10256", "/healthz"); err != nil {
		t.Fatalf("kube-proxy does not answer at its port: %v", err)
	}
	c := n.pod.Containers[0]
	probes := []*corev1.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe}
	for _, probe := range probes {
		eventually(t, probe.HTTPGet.Path+" succeeds", func() error { return n.asKubelet(probe) })
	}
	n.stop()
	for _, probe := range probes {
		if err := n.asKubelet(probe); err == nil {
			t.Errorf("without an agent, the probe of %s succeeds beside kube-proxy", probe.HTTPGet.Path)
		}
	}
	must(t, n.start())
}

// notServed is the number of ports that another program has.
func notServed(s *api.Status) (count int) {
	for _, c := range s.Conditions {
		if c.Code == condition.ListenFailed.Code {
			count++
		}
	}
	return count
}

// severe are the errors in the status.
func severe(n *labNode) (all []string) {
	status, err := n.agent.Status()
	must(n.t, err)
	for _, c := range status.Conditions {
		if c.Severity == condition.Error {
			all = append(all, fmt.Sprint(c))
		}
	}
	return slices.Compact(all)
}
