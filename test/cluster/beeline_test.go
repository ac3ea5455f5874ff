// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"testing"

	"beeline.io/beeline/test/node"
)

// kube-proxy on node-a and Beeline on node-b read one cluster, and a Service is the same from the pods of both.
// Both serve the same metrics, continue to serve while the API server is away, and follow it when it returns.
func TestTwoProxies(t *testing.T) {
	t.Parallel()
	c := New(t)
	proxy, err := c.StartKubeProxy(t.Context(), c.Lab.Host("node-a"))
	must(t, err)
	agent := c.startAgent(t, "node-b")
	c.createPodService(t, "b1", 20)
	c.awaitBoth(t, proxy, agent)
	c.wantAnswers(t, "a1", 20, "b1")
	c.wantAnswers(t, "b2", 20, "b1")
	c.compareMonitoring(t, proxy, c.Lab.Host("node-b"), func() { c.awaitBoth(t, proxy, agent) })

	must(t, c.KillAPIServer())
	c.wantAnswers(t, "a1", 20, "b1")
	c.wantAnswers(t, "b2", 20, "b1")
	must(t, c.StartAPIServer(t.Context()))
	c.createPodService(t, "a2", 21)
	c.awaitBoth(t, proxy, agent)
	c.wantAnswers(t, "a1", 21, "a2")
	c.wantAnswers(t, "b2", 21, "a2")
}

// startAgent starts Beeline on a node. Its log is shown if the test fails.
func (c *Cluster) startAgent(t *testing.T, name string, flags ...string) *node.Agent {
	t.Helper()
	agent, log := c.NewAgent(beeline, c.Lab.Host(name)), &node.Log{}
	agent.Log, agent.Flags = log, flags
	t.Cleanup(func() {
		if err := agent.Kill(); err != nil {
			t.Errorf("the agent on %s ended before it was killed: %v", name, err)
		}
		if t.Failed() {
			t.Logf("the agent on %s printed:\n%s", name, log)
		}
	})
	must(t, agent.Start())
	return agent
}

func (c *Cluster) awaitBoth(t *testing.T, proxy *KubeProxy, agent *node.Agent) {
	t.Helper()
	mark, err := c.Mark(t.Context())
	must(t, err)
	must(t, proxy.Await(t.Context(), mark))
	must(t, mark.AwaitAgent(agent))
}
