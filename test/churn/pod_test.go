// SPDX-License-Identifier: Apache-2.0

package churn

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/lab"
)

// pod is a pod whose server is a process of partPod.
type pod struct {
	*lab.Host
	addresses []netip.Addr // IPv4 and IPv6 in turn

	mu       sync.Mutex
	requests io.Writer
	answers  *bufio.Reader
}

// pairs is the number of addresses of each family in a pod.
const pairs = 2

// startPod gives a pod a second address of each family, and starts its process.
func startPod(t *testing.T, host *lab.Host) *pod {
	t.Helper()
	p := &pod{Host: host, addresses: []netip.Addr{host.Addr4, host.Addr6}}
	for _, addr := range []netip.Addr{host.Addr4, host.Addr6} {
		bytes := addr.AsSlice()
		bytes[len(bytes)-1] += 100 // the lab's pods end in 11 to 13
		second, _ := netip.AddrFromSlice(bytes)
		if err := errors.Join(host.AddAddress("eth0", netip.PrefixFrom(second, second.BitLen())), route(host, addr, second)); err != nil {
			t.Fatal(err)
		}
		p.addresses = append(p.addresses, second)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := host.Command(ctx, "/proc/self/exe")
	cmd.Args = []string{partPod, host.Name}
	for _, addr := range p.addresses {
		cmd.Args = append(cmd.Args, addr.String())
	}
	cmd.Stderr = os.Stderr
	requests, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	answers, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		cmd.Wait()
	})
	p.requests, p.answers = requests, bufio.NewReader(answers)
	return p
}

// route gives a pod's node a route to its second address, like that to its first.
func route(host *lab.Host, first, second netip.Addr) error {
	nl, link, err := host.Node.OpenDevice(host.Name)
	if err != nil {
		return err
	}
	defer nl.Close()
	source := host.Node.Addr4
	if first.Is6() {
		source = host.Node.Addr6
	}
	return nl.RouteAdd(&netlink.Route{
		LinkIndex: link.Attrs().Index, Scope: unix.RT_SCOPE_LINK, Src: source.AsSlice(),
		Dst: &net.IPNet{IP: second.AsSlice(), Mask: net.CIDRMask(second.BitLen(), second.BitLen())},
	})
}

// start and stop start and stop the server of one endpoint.
func (p *pod) start(at place) error { return p.request("start", at) }
func (p *pod) stop(at place) error  { return p.request("stop", at) }

func (p *pod) request(verb string, at place) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := fmt.Fprintln(p.requests, verb, at.index, at.port); err != nil {
		return err
	}
	line, err := p.answers.ReadString('\n')
	if answer := strings.TrimSpace(line); err == nil && answer != "" {
		err = errors.New(answer)
	}
	if err != nil {
		return fmt.Errorf("%s port %d of address %d in pod %s: %w", verb, at.port, at.index, p.Name, err)
	}
	return nil
}
