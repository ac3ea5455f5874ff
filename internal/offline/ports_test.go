// SPDX-License-Identifier: Apache-2.0

package offline

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/node/sockdiag"
	"beeline.io/beeline/test/needs"
)

// TestHeldBy: which sockets conflict with a port of an address (K5).
func TestHeldBy(t *testing.T) {
	for _, c := range []struct {
		bound      string
		v6Only     bool
		served     string
		oneAddress bool
		held       bool
	}{
		{bound: "0.0.0.0", served: "192.0.2.1", held: true},
		{bound: "0.0.0.0", served: "2001:db8::1"},
		{bound: "::", served: "192.0.2.1", held: true},
		{bound: "::", served: "2001:db8::1", held: true},
		{bound: "::", v6Only: true, served: "192.0.2.1"},
		{bound: "::", v6Only: true, served: "2001:db8::1", held: true},
		{bound: "::ffff:0.0.0.0", served: "192.0.2.1", held: true},
		{bound: "::ffff:0.0.0.0", served: "2001:db8::1"},
		{bound: "::ffff:192.0.2.1", served: "192.0.2.1", held: true},
		{bound: "192.0.2.1", served: "192.0.2.1", held: true},
		{bound: "192.0.2.2", served: "192.0.2.1"},
		{bound: "127.9.9.9", served: "127.0.0.1", held: true},
		{bound: "::ffff:127.9.9.9", served: "127.0.0.1", held: true},
		{bound: "127.9.9.9", served: "127.0.0.1", oneAddress: true},
		{bound: "127.0.0.1", served: "127.0.0.1", oneAddress: true, held: true},
		{bound: "127.0.0.1", served: "127.0.0.2"},
		{bound: "::1", served: "::1", held: true},
		{bound: "::1", served: "127.0.0.1"},
	} {
		f := ownedFrontend{addr: netip.MustParseAddr(c.served), oneAddress: c.oneAddress}
		s := sockdiag.Socket{Local: netip.AddrPortFrom(netip.MustParseAddr(c.bound), 80), V6Only: c.v6Only}
		if f.heldBy(s) != c.held {
			t.Errorf("a socket at %s (V6ONLY %v) holds a port of %s (alone %v): %v, want %v",
				c.bound, c.v6Only, c.served, c.oneAddress, !c.held, c.held)
		}
	}
}

// TestHeldPortsOfOthers: a socket that only another process has open is reported; one that this process has
// open is not.
func TestHeldPortsOfOthers(t *testing.T) {
	needs.Root(t)
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUDP("udp4", &net.UDPAddr{Port: 30080})
	if err != nil {
		t.Fatal(err)
	}
	f, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	ephemeral, err := net.ListenUDP("udp4", &net.UDPAddr{Port: 40080}) // as if the kernel had chosen it for a client
	if err != nil {
		t.Fatal(err)
	}
	clients, err := ephemeral.File()
	if err != nil {
		t.Fatal(err)
	}
	other := exec.Command("cat")
	other.ExtraFiles = []*os.File{f, clients}
	input, err := other.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer other.Wait()
	defer input.Close()
	tables := &api.Tables{Services: []api.Service{{Kind: service.KindService, Namespace: "default", Name: "web", Frontends: []api.Frontend{{
		Kind: service.NodePort,
		Key:  bpf.FrontendKey{Address: bpf.AddressFrom(netip.MustParseAddr("192.0.2.1")), Port: bpf.NetworkOrder(30080), Protocol: unix.IPPROTO_UDP},
	}}}}}
	frontend := tables.Services[0].Frontends[0]
	frontend.Key.Port = bpf.NetworkOrder(40080)
	tables.Services[0].Frontends = append(tables.Services[0].Frontends, frontend)
	if held, err := PortConflicts(tables); len(held) != 0 || err != nil {
		t.Errorf("this process has sockets at UDP 0.0.0.0:30080 and :40080, two NodePorts: reported as held are %v (%v), want none: it may hold them for the Service", held, err)
	}
	f.Close()
	l.Close()
	clients.Close()
	ephemeral.Close()
	held, err := PortConflicts(tables)
	if len(held) != 1 || err != nil || held[0].PID != other.Process.Pid || held[0].Process != "cat" {
		t.Errorf("cat (pid %d) has sockets at UDP 0.0.0.0:30080 and at :40080, which is in ip_local_port_range: reported as held are %v (%v), want port 30080 alone", other.Process.Pid, held, err)
	}
	for i := range tables.Services[0].Frontends {
		tables.Services[0].Frontends[i].Kind = service.LoadBalancer
	}
	if held, err := PortConflicts(tables); len(held) != 0 || err != nil {
		t.Errorf("cat has a socket at UDP 0.0.0.0:30080, and a Service has the load-balancer address 192.0.2.1:30080: reported as held are %v (%v), want none", held, err)
	}
}
