// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/test/lab"
)

// patience bounds one connection, and every other wait. What works takes milliseconds.
const patience = time.Minute

// The Services of the manifests that the demo uses.
const (
	webService    = "default/web"
	stickyService = "default/sticky"
	emptyService  = "default/empty"
	publicService = "default/public"
)

// A serviceView is a Service in the tables.
type serviceView struct {
	addresses []netip.AddrPort // of its ClusterIPs
	pods      []string         // behind the first of them
}

func family(a netip.AddrPort) string {
	if a.Addr().Is4() {
		return "IPv4"
	}
	return "IPv6"
}

// view reads a Service from an agent.
func (d *demo) view(name string) (serviceView, error) { return d.viewOf(name, service.TCP) }

// viewOf is view for the ports of one protocol.
func (d *demo) viewOf(name string, protocol service.Protocol) (serviceView, error) {
	var v serviceView
	tables, err := d.agents[0].Tables()
	if err != nil {
		return v, err
	}
	s, err := tables.Find(name)
	if err != nil {
		return v, fmt.Errorf("the demo needs it in the manifests: %w", err)
	}
	for _, f := range s.Frontends {
		if f.Kind != service.ClusterIP || f.Protocol != protocol {
			continue
		}
		address, err := netip.ParseAddrPort(f.Address)
		if err != nil {
			return v, err
		}
		v.addresses = append(v.addresses, address)
		if len(v.addresses) == 1 {
			v.pods = d.podsOf(f.FromPods.Backends)
		}
	}
	if len(v.addresses) == 0 {
		return v, fmt.Errorf("the demo needs a ClusterIP with a %s port for Service %s", protocol, name)
	}
	return v, nil
}

// podsOf names the pods with the backends' addresses.
func (d *demo) podsOf(backends []api.Member) []string {
	var pods []string
	for _, b := range backends {
		address, err := netip.ParseAddrPort(b.Address)
		if err != nil {
			continue
		}
		for _, pod := range d.lab.Pods() {
			if pod.Addr4 == address.Addr() || pod.Addr6 == address.Addr() {
				pods = append(pods, pod.Name)
			}
		}
	}
	slices.Sort(pods)
	return pods
}

// ask connects once, asks the server who it is, and closes.
func ask(ctx context.Context, from *lab.Host, to netip.AddrPort) (lab.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return from.Request(ctx, "tcp", to.String(), "who are you")
}

// askOften makes n connections, one after the other.
func askOften(ctx context.Context, title string, from *lab.Host, to netip.AddrPort, n int) *tally {
	t := &tally{title: title}
	for range n {
		answer, err := ask(ctx, from, to)
		t.add(answer.Pod, err)
	}
	return t
}
