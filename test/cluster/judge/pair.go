// SPDX-License-Identifier: Apache-2.0

// Package judge compares Beeline with the real kube-proxy: the same objects, the same client, the same
// connection to both, and then the results. docs/operate/differences.md says which results may differ.
package judge

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"

	"beeline.io/beeline/test/cluster"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

var kubeProxy = flag.String("kubeproxy", "", "program of a kube-proxy of another version than the cluster's; an absolute path")

// judged is the node under test, in both labs of a pair.
const judged = "node-a"

// Pair is one cluster on two labs with the same names and addresses: in the first, kube-proxy serves node-a, in
// the second Beeline does. Both read the same API server, and both act as the one node-a of the cluster, so
// that each object means the same to both. No other node has a proxy.
type Pair struct {
	Cluster *cluster.Cluster
	// Sides are the two labs, kube-proxy's first.
	Sides [2]*Side
	Proxy *cluster.KubeProxy
	Agent *node.Agent
}

// Side is one lab of a pair.
type Side struct {
	Name string // "kube-proxy" or "Beeline"
	Lab  *lab.Lab
}

// Options of the two proxies. The zero value is their defaults.
type Options struct {
	KubeProxy func(*kubeproxy.KubeProxyConfiguration)
	Agent     []string // flags
	XDP       bool     // prepare Beeline's lab for XDP
}

// New makes a pair for a test, with a server on each pod and each node.
func New(t cluster.TB, program string, options Options) *Pair {
	t.Helper()
	second := lab.New(t) // before the cluster: so it stays as long with -pause
	t.Logf("Beeline's lab is %s", second.Name)
	p := &Pair{Cluster: cluster.New(t)}
	p.Sides = [2]*Side{{"kube-proxy", p.Cluster.Lab}, {"Beeline", second}}
	if *kubeProxy != "" {
		version, err := exec.Command(*kubeProxy, "--version").Output()
		if err != nil {
			t.Fatalf("-kubeproxy=%s (`make kubeproxy` builds one): %v", *kubeProxy, err)
		}
		t.Logf("kube-proxy is %s", strings.TrimSpace(string(version)))
		p.Cluster.ProxyProgram = *kubeProxy
	}
	p.Agent = p.Cluster.NewAgent(program, p.Sides[1].Lab.Host(judged))
	log := &node.Log{}
	p.Agent.Log = log
	t.Cleanup(func() {
		if err := p.Agent.Kill(); err != nil {
			t.Errorf("the agent ended before it was killed: %v", err)
		}
		if t.Failed() {
			t.Logf("the agent printed:\n%s", log)
		}
	})
	if err := p.start(t.Context(), options); err != nil {
		t.Fatalf("a pair of nodes: %v", err)
	}
	return p
}

func (p *Pair) start(ctx context.Context, options Options) error {
	for _, side := range p.Sides {
		if err := side.prepare(); err != nil {
			return fmt.Errorf("the lab of %s: %w", side.Name, err)
		}
	}
	if err := p.relay(ctx); err != nil {
		return fmt.Errorf("the API server's address in the second lab: %w", err)
	}
	if err := p.createZones(ctx); err != nil {
		return err
	}
	return p.startProxies(ctx, options)
}

func (p *Pair) startProxies(ctx context.Context, options Options) error {
	p.Agent.Flags = append([]string{
		"--icmp-rate=0", // as answerAlways
		// kube-proxy has no limits. With 650 scenarios the node has 128 addresses, and NodePorts at all.
		"--max-frontends=524288", "--namespace-share=100",
	}, options.Agent...)
	if options.XDP {
		if err := p.Sides[1].Lab.ReadyForXDP(); err != nil {
			return err
		}
	}
	var starting sync.WaitGroup
	var agentErr error
	starting.Go(func() { agentErr = p.Agent.Start() })
	proxyErr := p.startKubeProxy(ctx, options)
	starting.Wait()
	return errors.Join(proxyErr, agentErr)
}

// Restart restarts both proxies with other options.
func (p *Pair) Restart(ctx context.Context, options Options) error {
	if err := errors.Join(p.Proxy.Stop(), p.Agent.Stop()); err != nil {
		return fmt.Errorf("stopping the proxies: %w", err)
	}
	return p.startProxies(ctx, options)
}

// Await waits until both proxies have every Service and EndpointSlice written so far.
func (p *Pair) Await(ctx context.Context) error {
	mark, err := p.Cluster.Mark(ctx)
	if err != nil {
		return err
	}
	if err := mark.AwaitAgent(p.Agent); err != nil {
		return err
	}
	return p.Proxy.Await(ctx, mark)
}

// relay serves the API server's address in the second lab.
func (p *Pair) relay(ctx context.Context) error {
	address := p.Cluster.Address().String()
	listener, err := p.Sides[1].Lab.Host("fabric").Listen("tcp", address)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed: the test has ended
			}
			go pass(ctx, conn, p.Sides[0].Lab.Host("fabric"), address)
		}
	}()
	return nil
}

// pass forwards a connection to an address of another host. When one side ends, with an error or without, so
// does the other.
func pass(ctx context.Context, from net.Conn, through *lab.Host, address string) {
	defer from.Close()
	to, err := through.Dial(ctx, "tcp", address)
	if err != nil {
		return
	}
	defer to.Close()
	go func() {
		io.Copy(to, from)
		to.Close()
		from.Close()
	}()
	io.Copy(from, to)
}

// prepare starts servers on the nodes, as host network pods are, and routes packets from elsewhere to Service
// addresses to the judged node.
func (s *Side) prepare() error {
	if err := s.Lab.StartServers(); err != nil {
		return err
	}
	for _, n := range s.Lab.Nodes() {
		if err := n.StartServer(lab.ServerOptions{}); err != nil {
			return err
		}
	}
	if err := s.giveSecondAddresses(); err != nil {
		return err
	}
	for _, host := range []string{judged, "node-b", "fabric"} {
		if err := s.Lab.Host(host).Do(answerAlways); err != nil {
			return err
		}
	}
	if err := s.routeServices(); err != nil {
		return err
	}
	if err := s.returnByNode(); err != nil {
		return err
	}
	return s.refuse()
}

// answerAlways lifts the rate limits on ICMP errors, which turn a refusal into silence if there are several in
// a second.
func answerAlways() error {
	for file, value := range map[string]string{
		"/proc/sys/net/ipv4/icmp_ratemask":  "0",
		"/proc/sys/net/ipv4/icmp_ratelimit": "0",
		"/proc/sys/net/ipv6/icmp/ratelimit": "0",
		"/proc/sys/net/ipv6/icmp/ratemask":  "\n",
	} {
		if err := os.WriteFile(file, []byte(value), 0); err != nil {
			return err
		}
	}
	return nil
}

// forgetFlows removes the flows of Beeline's edge and, from the conntrack table of kube-proxy's node, UDP, and
// TCP without a reply: their decisions outlive a socket there, and would apply to the next one with its port,
// even against session affinity. A lab's handle is only for routes: it would do this to the machine's own
// table.
func (p *Pair) forgetFlows() error {
	if _, err := p.Agent.CLI("flow", "flush", "--all"); err != nil {
		return fmt.Errorf("removing the flows of Beeline's edge: %w", err)
	}
	udp := &netlink.ConntrackFilter{}
	if err := udp.AddProtocol(unix.IPPROTO_UDP); err != nil {
		return err
	}
	return p.Sides[0].Lab.Host(judged).Do(func() error {
		for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
			if _, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, udp, unanswered{}); err != nil {
				return fmt.Errorf("removing flows from the connection tracking: %w", err)
			}
		}
		return nil
	})
}

// unanswered matches TCP connections with only a SYN.
type unanswered struct{}

func (unanswered) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	const synSent = 1 // TCP_CONNTRACK_SYN_SENT
	tcp, ok := flow.ProtoInfo.(*netlink.ProtoInfoTCP)
	return ok && tcp.State == synSent
}
