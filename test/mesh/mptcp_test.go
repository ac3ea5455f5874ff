// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/lab"
)

// TestMPTCP: connections of MPTCP are left alone, and getpeername returns where they go. A proxy that listens for
// applications by MPTCP learns the destination of their connections by TCP. At its inbound port it cannot, and a
// program that then listens by TCP, as Go's do, gets connections from other hosts.
func TestMPTCP(t *testing.T) {
	t.Parallel()
	if text, err := os.ReadFile("/proc/sys/net/mptcp/enabled"); err != nil || strings.TrimSpace(string(text)) != "1" {
		t.Skip("this kernel has no MPTCP, or it is switched off")
	}
	w := newWorld(t)
	multipath := envoy
	multipath.config = strings.Replace(envoy.config, "port_value: 15001}}\n", "port_value: 15001}}\n    enable_mptcp: true\n", 1)
	s := w.startProxy(multipath, "a1")
	w.startAgent()
	to := netip.AddrPortFrom(w.Host("b1").Addr4, lab.PortTCP)
	conn := w.open("a1", to, lab.DialOptions{})
	if w.ask(conn); !local(conn).IsLoopback() {
		t.Errorf("a connection by TCP from %s does not go to the proxy", local(conn))
	}
	conn.Close()
	w.eventually("the proxy has logged "+to.String(), func() bool { return s.proxied("127.0.0.1", to.String()) })
	fd, err := w.Host("a1").Socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP)
	w.must(err)
	defer unix.Close(fd)
	w.must(unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}))
	own, err := unix.Getsockname(fd)
	w.must(err)
	peer, err := unix.Getpeername(fd)
	w.must(err)
	if a := netip.AddrFrom4(own.(*unix.SockaddrInet4).Addr); a != w.Host("a1").Addr4 {
		t.Errorf("a connection by MPTCP has the source %s, want the pod's address", a)
	}
	if p := peer.(*unix.SockaddrInet4); netip.AddrPortFrom(netip.AddrFrom4(p.Addr), uint16(p.Port)) != to {
		t.Errorf("getpeername returns %v, want %s", p, to)
	}
	const refused = unix.EPROTONOSUPPORT
	for _, c := range []struct {
		user uint32
		port int
		want unix.Errno
	}{{proxyUser, 15006, refused}, {proxyUser, 7007, 0}, {1000, 15006, unix.EADDRINUSE}} { // the proxy has it
		for _, bind := range []string{
			`socket(my $s, 2, 1, 262) or die; bind($s, pack("S n N x8", 2, %d, 0)) or print $!+0, "\n"`,
			`socket(my $s, 10, 1, 262) or die; setsockopt($s, 41, 26, pack("i", 1)); bind($s, pack("S n N x16 N", 10, %d, 0, 0)) or print $!+0, "\n"`,
		} {
			cmd := w.Host("a1").Command(t.Context(), "perl", "-e", fmt.Sprintf(bind, c.port))
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: c.user, Gid: c.user}}
			out, err := cmd.CombinedOutput()
			if got, _ := strconv.Atoi(strings.TrimSpace(string(out))); err != nil || unix.Errno(got) != c.want {
				t.Errorf("user %d, port %d: bind of an MPTCP socket says %q (%v), want %d", c.user, c.port, out, err, c.want)
			}
		}
	}
}
