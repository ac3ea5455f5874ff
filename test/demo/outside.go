// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/report/explain"
	"beeline.io/beeline/test/lab"
)

const outsideRequests = 40

// showOutside has a client outside the cluster connect to a node's NodePort.
func showOutside(ctx context.Context, d *demo) error {
	addresses, err := d.nodePorts(publicService)
	if err != nil {
		return err
	}
	public, err := d.view(publicService)
	if err != nil {
		return err
	}
	client := d.lab.Host("client")
	var tallies []*tally
	sources := map[string]map[netip.Addr]bool{} // by pod
	for _, address := range addresses {
		t := &tally{title: fmt.Sprintf("client to %s", address)}
		for range outsideRequests {
			answer, err := get(ctx, client, netip.AddrPort{}, address)
			t.add(answer.Pod, err)
			if sources[answer.Pod] == nil {
				sources[answer.Pod] = map[netip.Addr]bool{}
			}
			sources[answer.Pod][answer.Peer.Addr()] = true
		}
		tallies = append(tallies, t)
	}
	if err := d.count(public.pods, tallies...); err != nil {
		return err
	}
	entry := d.agents[0].Host
	for _, pod := range public.pods {
		seen, whose := entry, "node-a's, because the reply has to return that way"
		if d.lab.Host(pod).Node == entry {
			seen, whose = client, "the client's own"
		}
		right := len(sources[pod]) == len(addresses) && sources[pod][seen.Addr4] && sources[pod][seen.Addr6]
		if err := d.claim(right, "the address that %s sees is %s", pod, whose); err != nil {
			return err
		}
	}
	return explainFirst(ctx, d, addresses[0])
}

// explainFirst has the node explain a connection, and then makes it.
func explainFirst(ctx context.Context, d *demo, to netip.AddrPort) error {
	from := netip.AddrPortFrom(d.lab.Host("client").Addr4, 25678) // none that its kernel would choose
	d.say("\n`beeline explain` says in advance where the next connection goes:")
	question := []string{"explain", "packet", from.String(), to.String() + "/tcp"}
	node := d.agents[0]
	d.say("$ %s", d.in(node.Host.Name, fmt.Sprintf("%s %s --pins %s", d.program, strings.Join(question, " "), node.BPFFS())))
	text, err := node.CLI(question...)
	d.say("%s", text)
	if err != nil {
		return fmt.Errorf("beeline %s: %w", strings.Join(question, " "), err)
	}
	text, err = node.CLI(append(question, "--output=json")...)
	if err != nil {
		return err
	}
	var said explain.Answer
	if err := json.Unmarshal([]byte(text), &said); err != nil {
		return err
	}
	answer, err := get(ctx, d.lab.Host("client"), from, to)
	if err != nil {
		return err
	}
	pod := d.lab.Host(answer.Pod)
	right := said.Rewritten != nil && (said.Rewritten.Destination.Addr() == pod.Addr4 || said.Rewritten.Destination.Addr() == pod.Addr6)
	return d.claim(right, "explain named the pod that then answers, %s", answer.Pod)
}

// nodePorts are the addresses of the first agent's node that serve a Service's NodePort.
func (d *demo) nodePorts(name string) ([]netip.AddrPort, error) {
	tables, err := d.agents[0].Tables()
	if err != nil {
		return nil, err
	}
	s, err := tables.Find(name)
	if err != nil {
		return nil, fmt.Errorf("the demo needs it in the manifests: %w", err)
	}
	var found []netip.AddrPort
	for _, f := range s.Frontends {
		if f.Kind != service.NodePort {
			continue
		}
		address, err := netip.ParseAddrPort(f.Address)
		if err != nil {
			return nil, err
		}
		if !address.Addr().IsLoopback() {
			found = append(found, address)
		}
	}
	if len(found) != 2 {
		return nil, fmt.Errorf("the demo needs a NodePort of Service %s in each address family; there are %v", name, found)
	}
	return found, nil
}

// get makes one HTTP request on a connection of its own, from an address and port of the host if they are
// valid.
func get(ctx context.Context, host *lab.Host, from, to netip.AddrPort) (lab.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return host.DialWith(ctx, lab.DialOptions{Local: from}, network, address)
		},
	}}
	return lab.Get(ctx, &client, "http://"+to.String()+"/")
}
