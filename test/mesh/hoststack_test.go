// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"beeline.io/beeline/test/lab"
)

// preloadedClient sends requests until its connection is on rings, and prints its peer.
const preloadedClient = `
import socket, sys, time
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
for _ in range(200):
    s.sendall(b"hello\n")
    if not s.recv(65536):
        sys.exit("the connection is closed")
    if "beeline-ring" in open("/proc/self/maps").read():
        sys.exit(print(s.getpeername()[0]))
    time.sleep(0.01)
sys.exit("the connection is not on rings")
`

// TestHostStack: with the settings that pods get, the connection of an application to another pod reaches its proxy,
// of another user, by rings, and the other end is whom the application asked for.
func TestHostStack(t *testing.T) {
	t.Parallel()
	library := libraryOf(t)
	w := newWorld(t)
	environment := preloadedBy(library)
	preloaded := haproxy.withLibrary(environment)
	s := w.startProxy(preloaded, "a1")
	w.startAgent()
	to := netip.AddrPortFrom(w.Host("b1").Addr4, lab.PortTCP)
	command := append(environment, "/usr/bin/python3", "-c", preloadedClient, to.Addr().String(), fmt.Sprint(to.Port()))
	out, err := s.pod.Command(t.Context(), command...).CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != to.Addr().String() {
		t.Errorf("%s: %v: %s", to, err, out)
	}
	if !s.proxied("127.0.0.1", to.String()) {
		t.Errorf("the proxy has not seen the connection to %s", to)
	}
}
