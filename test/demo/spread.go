// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"strings"

	"beeline.io/beeline/test/lab"
)

const (
	spreadConnections   = 200 // in each family
	affinityConnections = 20  // of each client
)

func showSpread(ctx context.Context, d *demo) error {
	web, err := d.view(webService)
	if err != nil {
		return err
	}
	var tallies []*tally
	for _, address := range web.addresses {
		title := fmt.Sprintf("%s %s", family(address), address)
		tallies = append(tallies, askOften(ctx, title, d.lab.Host("a1"), address, spreadConnections))
	}
	if err := d.count(web.pods, tallies...); err != nil {
		return err
	}
	nodes := map[string]bool{}
	for _, pod := range web.pods {
		nodes[d.lab.Host(pod).Node.Name] = true
	}
	if err := d.claim(len(nodes) == 2 && len(tallies) == 2, "the pods of %s are on both nodes, and it has an address in each family", webService); err != nil {
		return err
	}
	// Within five standard deviations: an even choice fails this less than once in a hundred thousand runs,
	// one that omits a pod does at once.
	share := 1 / float64(len(web.pods))
	mean, deviation := spreadConnections*share, math.Sqrt(spreadConnections*share*(1-share))
	even := true
	for _, t := range tallies {
		for _, pod := range web.pods {
			even = even && math.Abs(float64(t.byPod[pod])-mean) < 5*deviation
		}
	}
	return d.claim(even, "each of the %d pods got its share: about %.0f of %d", len(web.pods), mean, spreadConnections)
}

func showNames(ctx context.Context, d *demo) error {
	web, err := d.view(webService)
	if err != nil {
		return err
	}
	client := d.lab.Host("a1")
	for _, address := range web.addresses {
		if err := d.showOneName(ctx, client, address); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) showOneName(ctx context.Context, client *lab.Host, address netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	d.attempts++
	conn, err := client.Dial(ctx, "tcp", address.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	answer, err := lab.Ask(ctx, conn, "what do you see")
	if err != nil {
		return err
	}
	d.say("  %s", family(address))
	d.say("    the client connected to       %s", address)
	d.say("    getpeername at the client     %s", conn.RemoteAddr())
	d.say("    the client's own address      %s", conn.LocalAddr())
	d.say("    the server's own address      %s, pod %s", answer.Local, answer.Pod)
	d.say("    getpeername at the server     %s", answer.Peer)
	err = d.claim(conn.RemoteAddr().String() == address.String(), "the client sees the Service")
	if err != nil {
		return err
	}
	translated := answer.Peer.String() != conn.LocalAddr().String() || answer.Local.Addr() == address.Addr()
	return d.claim(!translated, "the server, at its own address, sees the client's own address and port")
}

func showAffinity(ctx context.Context, d *demo) error {
	sticky, err := d.view(stickyService)
	if err != nil {
		return err
	}
	var tallies []*tally
	for _, client := range []string{"a1", "a3", "b3"} {
		for _, address := range sticky.addresses {
			title := fmt.Sprintf("from %s to %s", client, address)
			tallies = append(tallies, askOften(ctx, title, d.lab.Host(client), address, affinityConnections))
		}
	}
	if err := d.count(sticky.pods, tallies...); err != nil {
		return err
	}
	single := true
	for _, t := range tallies {
		single = single && len(t.byPod) == 1
	}
	pods := strings.Join(sticky.pods, ", ")
	return d.claim(single, "each client always reached the same one of %s", pods)
}
