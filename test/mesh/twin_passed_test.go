// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"time"

	"beeline.io/beeline/test/lab"
)

// calledItself connects as a process of the proxy's user, and reports "ok" if the proxy's inbound side gets that, or
// does not.
func (w *world) calledItself(s *sidecar, to netip.AddrPort, wanted bool) string {
	own := to.Addr().String()
	lines := func() int { return s.lines(own, to.String()) + s.lines(own, haproxyName(to)) }
	inbound := false
	for range 5 { // haproxy drops a line now and then
		before := lines()
		cmd := s.pod.Command(w.t.Context(), "timeout", "20", "bash", "-c", fmt.Sprintf("exec 3<>/dev/tcp/%s/%d && echo h >&3", to.Addr(), to.Port()))
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: proxyUser, Gid: proxyUser}}
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Sprintf("%v: %s", err, out)
		}
		if inbound = soon(wanted, func() bool { return lines() > before }); inbound || !wanted {
			break
		}
	}
	if inbound != wanted {
		return fmt.Sprintf("by its inbound side: %v", inbound)
	}
	return "ok"
}

// soon reports whether something is so within a second, or longer if it is wanted.
func soon(wanted bool, ok func() bool) bool {
	limit := time.Second
	if wanted {
		limit = patience / 12
	}
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if ok() {
			return true
		}
	}
	return false
}

// passed reports "ok" if connections go through the proxy, which logs them, or do not. haproxy drops a line now and
// then, so one of several is enough.
func (w *world) passed(s *sidecar, from *lab.Host, to netip.AddrPort, wanted bool) string {
	return w.passedBy(func() (tcpConn, error) { return w.applicationsOf(from).connect(to) }, s, to, wanted)
}

// passedWith is passed for connections with options.
func (w *world) passedWith(options lab.DialOptions, s *sidecar, from *lab.Host, to netip.AddrPort, wanted bool) string {
	return w.passedBy(func() (tcpConn, error) { return overTCP(w.dial(from.Name, to, options)) }, s, to, wanted)
}

// overTCP is the result of a dial by TCP.
func overTCP(conn net.Conn, err error) (tcpConn, error) {
	if err != nil {
		return nil, err
	}
	return conn.(*net.TCPConn), nil
}

func (w *world) passedBy(connect func() (tcpConn, error), s *sidecar, to netip.AddrPort, wanted bool) string {
	logged := false
	for range 10 {
		found, err := w.logged(connect, s, to, wanted)
		if err != nil {
			return outcome(err)
		}
		if logged = found; logged || !wanted {
			break
		}
	}
	if logged != wanted {
		return fmt.Sprintf("through the proxy: %v", logged)
	}
	return "ok"
}

// logged connects, and reports whether the proxy logs it soon.
func (w *world) logged(connect func() (tcpConn, error), s *sidecar, to netip.AddrPort, wanted bool) (bool, error) {
	conn, err := connect()
	if err != nil {
		return false, err
	}
	source := local(conn).String()
	lines := func() int { return s.lines(source, to.String()) + s.lines(source, haproxyName(to)) }
	before := lines()
	defer conn.Close()
	if _, err = conn.Write([]byte("h")); err == nil {
		err = conn.CloseWrite()
	}
	if err == nil {
		_, err = io.Copy(io.Discard, conn)
	}
	if err != nil {
		return false, err
	}
	conn.Close()
	found := soon(wanted, func() bool { return lines() > before })
	if found != wanted {
		w.t.Logf("%s in %s has logged the connection from %s to %s: %v; it has logged %d of these", s.name, s.pod.Name, local(conn), to, found, lines())
	}
	return found, nil
}
