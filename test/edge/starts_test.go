// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"beeline.io/beeline/test/lab"
)

var starts = flag.Int("starts", 200, "how often TestFirstConnection starts a balancer")

// The first connection to a VIP that has only IPv6 is answered without a retransmission: as soon as the agent says that
// it is ready, also where neither the router nor the balancer knows its neighbours yet.
func TestFirstConnection(t *testing.T) {
	if testing.Short() {
		t.Skipf("the short form has no time for %d starts", *starts)
	}
	w := newWorld(t, "--edge-mode=tc")
	vip := netip.MustParseAddrPort("[2001:db8:f::10]:80")
	w.agent.Manifests = filepath.Join(t.TempDir(), "vip.yaml")
	w.must(os.WriteFile(w.agent.Manifests, fmt.Appendf(nil, `apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  clusterIP: %[1]s
  ipFamilies: [IPv6]
  externalIPs: ["%[1]s"]
  ports: [{name: http, port: 80}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web, labels: {kubernetes.io/service-name: web}}
addressType: IPv6
ports: [{name: http, port: %[2]d}]
endpoints: [{addresses: ["%[3]s"]}]
`, vip.Addr(), lab.PortTCP, w.Host("b1").Addr6), 0o644))
	w.must(addRoute(w.Host("fabric"), "node-a", &netlink.Route{Dst: network("2001:db8:f::/64"), Gw: w.Host("node-a").Addr6.AsSlice()}))
	for i := range *starts {
		w.must(w.agent.Start())
		if i%2 == 1 {
			for _, host := range []string{"fabric", "node-a", "client"} {
				w.runOn(host, "ip", "-6", "neigh", "flush", "all")
			}
		}
		before := w.synRetransmissions()
		if _, err := w.ask("tcp", vip); err != nil {
			t.Fatalf("start %d: %v", i, err)
		}
		if n := w.synRetransmissions() - before; n > 0 {
			t.Errorf("start %d: the client has sent its SYN %d times again", i, n)
		}
		w.must(w.agent.Stop())
		if _, err := w.agent.CLI("cleanup"); err != nil {
			t.Fatal(err)
		}
	}
}

// synRetransmissions is how many SYNs the client has sent again.
func (w *world) synRetransmissions() uint64 {
	w.t.Helper()
	lines := strings.Split(w.output("client", "cat", "/proc/net/netstat"), "\n")
	for i, name := range strings.Fields(lines[0]) {
		if name == "TCPSynRetrans" {
			n, err := strconv.ParseUint(strings.Fields(lines[1])[i], 10, 64)
			w.must(err)
			return n
		}
	}
	w.t.Fatalf("the kernel does not count retransmitted SYNs: %s", lines[0])
	return 0
}
