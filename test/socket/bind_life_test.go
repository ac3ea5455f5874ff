// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"fmt"
	"net/netip"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/test/node"
)

// K5: protection needs no agent. The next agent may end it, and the one after that begin it again; each takes
// over the current ports.
func TestBindWithoutAnAgent(t *testing.T) {
	w := startWorld(t, "node-a")
	host, a := w.Host("node-a"), w.agent()
	w.apply("web", w.publicBoth("web", 1, nodePort))
	want := func(err error) {
		t.Helper()
		for _, f := range families {
			wantBind(t, host, f, f.everywhere(nodePort), err)
			wantBind(t, host, f, f.on(host, nodePort), err)
			wantBind(t, host, f, f.everywhere(nodePort+1), allowed)
		}
	}
	want(refused)
	w.must(a.Kill())
	want(refused)

	a.Flags = []string{"--bind-protection=false"}
	w.must(a.Start())
	want(allowed)
	status, err := a.Status()
	w.must(err)
	isBind := func(pin string) bool {
		return strings.Contains(path.Base(pin), "bind4") || strings.Contains(path.Base(pin), "bind6")
	}
	if hooks := hookNames(status); slices.ContainsFunc(hooks, isBind) || !slices.Contains(hooks, "connect4") {
		t.Errorf("attached without bind protection: %v", hooks)
	}
	if pins := w.pins(a); slices.ContainsFunc(pins, isBind) {
		t.Errorf("pinned without bind protection: %v", pins)
	}

	w.must(a.Kill())
	a.Flags = nil
	w.must(a.Start())
	want(refused)
	status, err = a.Status()
	w.must(err)
	for _, name := range []string{"bind4", "bind6", "post_bind4", "post_bind6"} {
		if !slices.Contains(hookNames(status), name) {
			t.Errorf("%s is not attached: %v", name, hookNames(status))
		}
	}

	// Ports of Services removed while no agent was running are free once the next one is ready.
	w.must(a.Kill())
	w.must(w.folder.Remove("web"))
	w.must(a.Start())
	w.eventually("the ports are free", func() bool {
		return tcp.try(t, host, ipv6, ipv6.everywhere(nodePort)) == allowed && udp.try(t, host, ipv6, ipv6.everywhere(nodePort)) == allowed
	})
	want(allowed)
}

func hookNames(s *api.Status) (names []string) {
	for _, a := range s.Attachments {
		names = append(names, a.Hook)
	}
	return names
}

// heldPorts is the list of port conflicts in status.
func (w *world) heldPorts() []api.PortConflict {
	w.t.Helper()
	s, err := w.agent().Status()
	w.must(err)
	if s.PortConflictsUnavailable != "" {
		w.t.Errorf("status could not list sockets: %s", s.PortConflictsUnavailable)
	}
	return s.PortConflicts
}

// K5: status names programs that held the port before a Service was added, or while protection was off, until
// they close it. It does not name what does not conflict: other addresses, other ports, sockets that do not
// listen, pods.
func TestStatusNamesWhoHoldsAPort(t *testing.T) {
	// A process can have any name: this one has a terminal's escape sequences.
	comm, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("/proc/self/comm", []byte(hostileName), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.WriteFile("/proc/self/comm", comm, 0) })
	for _, flag := range []string{"--bind-protection=true", "--bind-protection=false"} {
		t.Run(flag, func(t *testing.T) { testStatusNamesWhoHoldsAPort(t, flag) })
	}
}

const hostileName = "\x1b]0;x\x07me"

func testStatusNamesWhoHoldsAPort(t *testing.T, flag string) {
	w := newWorld(t, "node-a")
	w.agent().Flags = []string{flag}
	host, extra := w.Host("node-a"), netip.MustParseAddr("203.0.113.7")
	w.addAddress(host, extra)
	bind := func(tr transport, on string, f family, to netip.AddrPort, options ...sockopt) *hostSocket {
		t.Helper()
		s, err := tr.bind(t, w.Host(on), f, to, append(options, reusePort)...)
		w.must(err)
		if tr.kind == unix.SOCK_STREAM {
			w.must(unix.Listen(s.fd, 1))
		}
		return s
	}
	web, pod := service.Ref{Kind: service.KindService, Namespace: "default", Name: "web"}, service.Ref{Kind: service.KindPod, Namespace: "default", Name: "a1"}
	type holder struct {
		*hostSocket
		what  service.Protocol
		at    string
		owner service.Ref
	}
	holders := []holder{
		{bind(udp, "node-a", ipv4, ipv4.everywhere(nodePort)), service.UDP, "0.0.0.0:30080", web},
		{bind(udp, "node-a", ipv6, ipv6.everywhere(nodePort), v6Only), service.UDP, "[::]:30080", web},
		{bind(tcp, "node-a", v4Mapped, v4Mapped.on(host, nodePort)), service.TCP, "[::ffff:192.168.100.1]:30080", web},
		{bind(tcp, "node-a", ipv4, ipv4.choose("127.0.0.9", "", nodePort)), service.TCP, "127.0.0.9:30080", web},
		{bind(tcp, "node-a", ipv6, ipv6.everywhere(hostPort)), service.TCP, fmt.Sprintf("[::]:%d", hostPort), pod},
	}
	bind(tcp, "node-a", ipv4, ipv4.on(host, hostPort))                      // the Pod has another address
	bind(udp, "node-a", ipv6, ipv6.on(host, hostPort))                      // IPv6; the Pod's is IPv4
	bind(udp, "node-a", ipv6, ipv6.everywhere(hostPort), v6Only)            // the same
	bind(tcp, "node-a", ipv4, ipv4.everywhere(nodePort+1))                  // another port
	bind(tcp, "a1", ipv4, ipv4.everywhere(nodePort))                        // a pod's own
	if _, err := tcp.bind(t, host, ipv6, ipv6.loopbacks()[0]); err != nil { // does not listen
		t.Fatal(err)
	}
	busy := bind(udp, "node-a", ipv4, ipv4.choose("127.0.0.1", "", nodePort))
	w.must(busy.connect(ipv4.choose("127.0.0.1", "", 9))) // receives only from there
	client, err := tcp.bind(t, host, ipv4, ipv4.on(host, nodePort), reusePort)
	w.must(err)
	client.reach(ipv4.pod(w.Host("b1"))) // a connection

	public, endpoints := node.Public("web", 1, nodePort, w.Host("b1"))
	w.write("web", public, endpoints[0], endpoints[1])
	w.write("a1", podWithPort(w.Host("a1"), extra.String(), hostPort))
	w.start()
	for len(holders) > 0 {
		var want []api.PortConflict
		for _, h := range holders {
			want = append(want, api.PortConflict{Address: h.at, Protocol: h.what, Owners: []service.Ref{h.owner}, PID: os.Getpid(), Process: hostileName})
		}
		wantHeld(t, w.heldPorts(), want)
		out, err := w.beeline("status", "-v", "--agent-socket="+w.agent().Socket())
		wantExit(t, err, 4)
		for _, text := range []string{holders[0].at, holders[0].what.String() + " ", holders[0].owner.String(), `\u001b]0;x\u0007me`, fmt.Sprintf("pid %d", os.Getpid())} {
			if !strings.Contains(out, text) {
				t.Errorf("status does not say %q:\n%s", text, out)
			}
		}
		if strings.ContainsAny(out, "\x1b\x07") {
			t.Errorf("status contains control characters: %q", out)
		}
		holders[0].close()
		holders = holders[1:]
	}
	wantHeld(t, w.heldPorts(), nil)
	if out, err := w.beeline("status", "--agent-socket="+w.agent().Socket()); err != nil {
		t.Errorf("without conflicts: %v\n%s", err, out)
	}
}

func wantHeld(t *testing.T, got, want []api.PortConflict) {
	t.Helper()
	text := func(all []api.PortConflict) string {
		var lines []string
		for _, h := range all {
			lines = append(lines, h.String())
		}
		slices.Sort(lines)
		return strings.Join(lines, "\n")
	}
	if text(got) != text(want) {
		t.Errorf("status names\n%s\nwant\n%s", text(got), text(want))
	}
}
