// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

const (
	// patience bounds all waiting. No result depends on it.
	patience = time.Minute
	// soon is how long a change may take until it has an effect, and load how much longer on a busy machine.
	soon = time.Second
	load = 3
)

// router is the host that forwards, and runs the agent.
const router = "node-a"

// A world is a lab of hosts around a router.
//
//	client eth0 --- c0 router s0 --- eth0 server
//	                          s1 --- eth1 server
//	                          x0 --- eth0 other
//
// The server's own addresses are at its loopback device; the router reaches them by s0.
type world struct {
	*lab.Lab
	t     *testing.T
	agent *node.Agent
	ports *atomic.Int32
	path  api.FlowPath // of flows that are short-cut
}

// hosts are those of the lab, by their part.
var hosts = map[string]string{"client": "client", "server": "b1", "other": "b2", "router": router, "tenant a": "a1", "tenant b": "a2", "server a": "a3", "server b": "b3"}

// host is the host of a part.
func (w *world) host(part string) *lab.Host { return w.Host(hosts[part]) }

// newLab makes a lab with a client, a router and its rules. The agent is not started.
func newLab(t *testing.T, flags ...string) *world {
	t.Helper()
	w := &world{Lab: lab.NewOf(t, lab.Shape{Bare: true}), t: t, ports: &atomic.Int32{}, path: api.PathCache}
	w.ports.Store(firstPort)
	w.link("client", "c0", networkClient)
	w.sysctl("router", "netfilter/nf_conntrack_acct=1", "netfilter/nf_conntrack_tcp_loose=0", "netfilter/nf_conntrack_tcp_be_liberal=0")
	w.sysctl("router", "ipv4/conf/all/arp_notify=1", "ipv6/conf/c0/ndisc_notify=1")
	w.nft(rules())
	folder := &node.Folder{Path: t.TempDir()}
	w.must(folder.Write("none", []byte("# no objects\n")))
	w.agent = &node.Agent{Host: w.host("router"), Program: program, Manifests: folder.Path, MaxFlows: 16384, EdgeMode: "off", Flags: append([]string{"--offload-provider=cache"}, flags...), Log: &node.Log{}}
	t.Cleanup(func() {
		if err := w.agent.Kill(); err != nil {
			t.Errorf("the agent ended before it was killed: %v", err)
		}
		if t.Failed() {
			t.Logf("the agent printed:\n%s", w.agent.Log)
		}
	})
	return w
}

// newWorld makes a lab with a server of two links, and another host.
func newWorld(t *testing.T, flags ...string) *world {
	t.Helper()
	w := newLab(t, flags...)
	w.link("server", "s0", networkServer)
	w.link("server", "s1", networkServer1)
	w.link("other", "x0", networkOther)
	w.addServer()
	w.sysctl("server", announcing...)
	return w
}

// start starts the agent, unless the stack is tested.
func (w *world) start() {
	w.t.Helper()
	if !*stack {
		w.must(w.agent.Start())
	}
}

// in is the world for a subtest.
func (w *world) in(t *testing.T) *world {
	sub := *w
	sub.t = t
	return &sub
}

// must ends the test if a step fails that is not under test.
func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// run runs a command on a host and returns what it prints.
func (w *world) run(part string, argv ...string) string {
	w.t.Helper()
	return w.feed(part, "", argv...)
}

// feed is run with a text on standard input.
func (w *world) feed(part, text string, argv ...string) string {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := w.host(part).Command(ctx, argv...)
	cmd.Stdin = strings.NewReader(text)
	out, err := cmd.CombinedOutput()
	if err != nil {
		w.t.Fatalf("%s: %s: %v: %s%.200s", part, strings.Join(argv, " "), err, out, text)
	}
	return string(out)
}

// ip runs commands of ip(8) on a host.
func (w *world) ip(part string, commands ...string) {
	w.t.Helper()
	w.feed(part, strings.Join(commands, "\n")+"\n", "ip", "-batch", "-")
}

// sysctl writes settings below net.
func (w *world) sysctl(part string, settings ...string) {
	w.t.Helper()
	w.must(w.host(part).Do(func() error {
		for _, s := range settings {
			path, value, _ := strings.Cut(s, "=")
			if err := os.WriteFile("/proc/sys/net/"+path, []byte(value), 0o644); err != nil {
				return err
			}
		}
		return nil
	}))
}

// eventually waits until ok returns true.
func (w *world) eventually(what string, ok func() bool) {
	w.t.Helper()
	w.within(patience, what, ok)
}

// within is eventually with a limit that matters.
func (w *world) within(limit time.Duration, what string, ok func() bool) {
	w.t.Helper()
	for end := time.Now().Add(limit); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("waited %v in vain for this: %s\n%s", limit, what, node.Says(w.agent))
		}
	}
}

// family is 0 for IPv4, 1 for IPv6: an index of pairs of addresses.
type family int

var families = []family{0, 1}

func (f family) String() string { return []string{"IPv4", "IPv6"}[f] }

// address is host number n in a network of the world.
func (f family) address(network, n int) netip.Addr {
	if f == 0 {
		return netip.AddrFrom4([4]byte{10, byte(network), 0, byte(n)})
	}
	return netip.MustParseAddr(fmt.Sprintf("fd00:%d::%d", network, n))
}

// prefix is a network of the world.
func (f family) prefix(network int) netip.Prefix {
	return netip.PrefixFrom(f.address(network, 0), []int{24, 64}[f])
}

// Networks of the world: those of the links have the router as number 1 and the host as number 2.
const (
	networkClient  = 1
	networkServer  = 2
	networkServer1 = 3
	networkOther   = 4
	networkPublic  = 8 // translated to the same host of networkTargets
	networkTargets = 9 // the server's own addresses
)

// each returns one command for each family, with the addresses that a function fills in.
func each(command func(f family) string) []string {
	var all []string
	for _, f := range families {
		all = append(all, command(f))
	}
	return slices.Clip(all)
}
