// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/test/lab"
)

const (
	datagramsService = "default/datagrams"
	// datagramSockets is enough to reach each of three pods: one is missed with a probability of (2/3)^40,
	// which is one in ten million.
	datagramSockets = 40
	// datagramsEach is the number of datagrams of each socket.
	datagramsEach = 5
)

func showDatagrams(ctx context.Context, d *demo) error {
	questions, err := d.viewOf(datagramsService, service.UDP)
	if err != nil {
		return err
	}
	for _, address := range questions.addresses {
		if err := d.showFlows(address, questions.pods); err != nil {
			return err
		}
	}
	if err := d.showGone(ctx, questions); err != nil {
		return err
	}
	return d.showBind()
}

// showFlows sends from many sockets, several times each.
func (d *demo) showFlows(to netip.AddrPort, pods []string) error {
	seen := map[string]int{}
	for range datagramSockets {
		pod, err := d.flow(to)
		if err != nil {
			return err
		}
		seen[pod]++
	}
	var counts, names []string
	for pod := range seen {
		names = append(names, pod)
	}
	slices.Sort(names)
	for _, pod := range names {
		counts = append(counts, fmt.Sprintf("%s %d", pod, seen[pod]))
	}
	d.say("  %d sockets of a1, %d datagrams each to %s: %s", datagramSockets, datagramsEach, to, strings.Join(counts, ", "))
	return d.claim(slices.Equal(names, pods), "%s: every socket kept one pod, all pods were used, and all replies came from the Service", family(to))
}

// flow sends datagrams from one new socket, and returns the pod that answered all of them.
func (d *demo) flow(to netip.AddrPort) (pod string, err error) {
	any := "0.0.0.0:0"
	if to.Addr().Is6() {
		any = "[::]:0"
	}
	socket, err := d.lab.Host("a1").ListenPacket("udp", any)
	if err != nil {
		return "", err
	}
	defer socket.Close()
	socket.SetDeadline(time.Now().Add(patience))
	buffer := make([]byte, 4096)
	for range datagramsEach {
		d.attempts++
		if _, err := socket.WriteTo([]byte("who are you"), net.UDPAddrFromAddrPort(to)); err != nil {
			return "", err
		}
		n, from, err := socket.ReadFrom(buffer)
		if err != nil {
			return "", err
		}
		var answer lab.Answer
		if err := json.Unmarshal(buffer[:n], &answer); err != nil {
			return "", fmt.Errorf("an answer from %s: %w", from, err)
		}
		if got := from.(*net.UDPAddr).AddrPort(); netip.AddrPortFrom(got.Addr().Unmap(), got.Port()) != to {
			return "", fmt.Errorf("sent to %s, but the reply came from %s", to, from)
		}
		if pod != "" && pod != answer.Pod {
			return "", fmt.Errorf("one socket's datagrams to %s went to %s and to %s", to, pod, answer.Pod)
		}
		pod = answer.Pod
	}
	return pod, nil
}

// showGone removes the pod of a connected socket.
func (d *demo) showGone(ctx context.Context, questions serviceView) error {
	address := questions.addresses[0]
	socket, err := d.lab.Host("a3").Dial(ctx, "udp", address.String())
	if err != nil {
		return err
	}
	defer socket.Close()
	answer, err := lab.Ask(ctx, socket, "who are you")
	if err != nil {
		return err
	}
	d.attempts++
	removed, err := removeEndpoints(d.folder, datagramsService, d.lab.Host(answer.Pod))
	if err != nil {
		return err
	}
	begin := time.Now()
	socket.SetReadDeadline(begin.Add(patience))
	_, err = socket.Read(make([]byte, 1))
	d.say("  a socket of a3 was connected to %s; %s later it got the error: %v", answer.Pod, time.Since(begin).Round(time.Millisecond), err)
	if !errors.Is(err, syscall.ECONNABORTED) {
		return fmt.Errorf("pod %s was removed from Service %s, and a socket connected to it got %w; want %q", answer.Pod, datagramsService, err, syscall.ECONNABORTED)
	}
	if err := removed.undo(); err != nil {
		return err
	}
	return d.claim(true, "a connected socket whose pod was removed got an error, instead of sending to nobody for ever")
}

// showBind binds the NodePort of the manifests, where it is served and where not.
func (d *demo) showBind() error {
	tables, err := d.agents[0].Tables()
	if err != nil {
		return err
	}
	public, err := tables.Find(publicService)
	if err != nil {
		return fmt.Errorf("the demo needs it in the manifests: %w", err)
	}
	for _, f := range public.Frontends {
		address, err := netip.ParseAddrPort(f.Address)
		if err != nil || f.Kind != service.NodePort || address.Addr().IsLoopback() {
			continue
		}
		on := func(host *lab.Host) error {
			l, err := host.Listen("tcp", fmt.Sprintf("[::]:%d", address.Port()))
			if err == nil {
				l.Close()
			}
			return err
		}
		node, pod := on(d.lab.Host("node-a")), on(d.lab.Host("a1"))
		d.refusals++
		d.say("  bind to port %d: on node-a %v, in pod a1 %v", address.Port(), outcome(node), outcome(pod))
		return d.claim(errors.Is(node, syscall.EADDRINUSE) && pod == nil,
			"no program on the node can bind a NodePort, where it would never get a connection; pods can bind any port")
	}
	return fmt.Errorf("the demo needs a NodePort of Service %s", publicService)
}

func outcome(err error) string {
	errno := syscall.Errno(0)
	switch {
	case err == nil:
		return "works"
	case errors.As(err, &errno):
		return fmt.Sprintf("%q", errno.Error())
	}
	return err.Error()
}
