// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"beeline.io/beeline/test/lab"
)

// preloadedClient sends requests until its connection is on rings, and prints its peer. Each end tries at every 64 ms
// for two seconds, and then at powers of two of its operations until the 1024th: on a busy machine, which runs the
// other end late, only then.
const preloadedClient = `
import socket, sys, time
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
for _ in range(1100):
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
	// It logs a connection when that has ended.
	w.eventually("the proxy has logged "+to.String(), func() bool { return s.proxied("127.0.0.1", to.String()) })
}
