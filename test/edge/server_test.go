// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
)

// R26: neither the socket hooks nor the edge translate the agent's own connections to the API server, even if a
// Service has the server's address and port as external IP.
func TestAgentReachesTheAPIServerItself(t *testing.T) {
	w := startWorld(t)
	server, thief := w.newHealthServer("b1"), w.newHealthServer("a2")
	stolen, slices := w.everywhere("thief", 7, "a2")
	stolen.Spec.ExternalIPs = []string{w.Host("b1").Addr4.String(), w.Host("b1").Addr6.String()}
	stolen.Spec.Ports = stolen.Spec.Ports[:1]
	stolen.Spec.Ports[0].Port = 9000
	for _, slice := range slices {
		slice.Ports = slice.Ports[:1]
		*slice.Ports[0].Port = 9000
	}
	w.apply("thief", objects(stolen, slices)...)
	w.must(w.agent.Stop()) // its programs stay
	for _, at := range []netip.Addr{w.Host("b1").Addr4, w.Host("b1").Addr6} {
		asked := server.asked.Load()
		w.agent.Manifests, w.agent.Kubeconfig = "", filepath.Join(t.TempDir(), "kubeconfig")
		w.must(os.WriteFile(w.agent.Kubeconfig, fmt.Appendf(nil, `{apiVersion: v1, kind: Config, current-context: x,
  clusters: [{name: c, cluster: {server: "http://%s"}}], users: [{name: u, user: {token: t}}],
  contexts: [{name: x, context: {cluster: c, user: u}}]}`, netip.AddrPortFrom(at, 9000)), 0o600))
		w.must(w.agent.StartOnly())
		w.eventually("the server itself gets requests", func() bool { return server.asked.Load() > asked || thief.asked.Load() > 0 })
		w.must(w.agent.Kill())
		if n := thief.asked.Load(); n > 0 {
			t.Errorf("at %s the Service's backend got %d requests", at, n)
		}
	}
}
