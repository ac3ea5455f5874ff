// SPDX-License-Identifier: Apache-2.0

package sockets

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"

	"github.com/cilium/ebpf"
	corev1 "k8s.io/api/core/v1"

	"beeline.io/beeline/bench/endpoint"
	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/test/lab"
)

// A hook is a measured program, with Services of one protocol.
type hook struct {
	name     string // as the agent names it
	family   string
	attach   ebpf.AttachType
	protocol corev1.Protocol
	cases    func(*hookRig, hook) []*hookCase
}

var hooks = []hook{
	{"connect4", "IPv4", ebpf.AttachCGroupInet4Connect, corev1.ProtocolTCP, (*hookRig).connectCases},
	{"connect6", "IPv6", ebpf.AttachCGroupInet6Connect, corev1.ProtocolTCP, (*hookRig).connectCases},
	{"sendmsg4", "IPv4", ebpf.AttachCGroupUDP4Sendmsg, corev1.ProtocolUDP, (*hookRig).sendCases},
	{"sendmsg6", "IPv6", ebpf.AttachCGroupUDP6Sendmsg, corev1.ProtocolUDP, (*hookRig).sendCases},
	{"recvmsg4", "IPv4", ebpf.AttachCGroupUDP4Recvmsg, corev1.ProtocolUDP, (*hookRig).receiveCases},
	{"recvmsg6", "IPv6", ebpf.AttachCGroupUDP6Recvmsg, corev1.ProtocolUDP, (*hookRig).receiveCases},
}

// A hookCase is calls from a pod, each of which runs one program once.
type hookCase struct {
	name    string
	bare    bool // from a pod of the node with only the empty program
	call    func(ctx context.Context, pod *lab.Host, calls int) error
	counted func(calls uint64) bpf.SocketCounters // what the hooks must count
	program *ebpf.Program
}

const (
	caseEmpty   = "an empty program" // the first of each hook's
	casePlain   = "not a Service"
	caseOne     = "one Service, again and again"
	caseAll     = "all Services in random order"
	casePlainOf = "not a Service, a socket with 5 flows"
	caseFlow    = "one Service, established flow"
	caseNewFlow = "one Service, a new socket each time"
	caseAllNew  = "all Services, a new socket each time"
	caseMany    = "all Services, in turn on one socket"
	caseAnswer  = "an answer of an established flow"
)

// The limit of flows per socket, and the number from which searching them takes long (FLOWS and
// UDP_FLOWS_OVERFLOW in bpf/lb/types.h).
const (
	socketFlows = 4 + 256
	longFlows   = 4 + 1
)

func (rig *hookRig) connectCases(h hook) []*hookCase {
	call := func(to []netip.AddrPort) endpoint.CallerConfig { return endpoint.CallerConfig{Targets: to} }
	pass := func(n uint64) bpf.SocketCounters { return bpf.SocketCounters{ConnectPass: n} }
	balance := func(n uint64) bpf.SocketCounters { return bpf.SocketCounters{ConnectBalance: n} }
	plain, all := rig.targets(h.family)
	return []*hookCase{
		{name: caseEmpty, bare: true, call: rig.caller(call(plain)), counted: nothing},
		{name: casePlain, call: rig.caller(call(plain)), counted: pass},
		{name: caseOne, call: rig.caller(call(all[:1])), counted: balance},
		{name: caseAll, call: rig.caller(call(all)), counted: balance},
	}
}

func (rig *hookRig) sendCases(h hook) []*hookCase {
	one := func(to []netip.AddrPort) endpoint.CallerConfig {
		return endpoint.CallerConfig{Datagrams: true, OneSocket: true, Targets: to}
	}
	each := func(to []netip.AddrPort) endpoint.CallerConfig {
		return endpoint.CallerConfig{Datagrams: true, Targets: to}
	}
	pass := func(n uint64) bpf.SocketCounters { return bpf.SocketCounters{DatagramPass: n} }
	flow := func(n uint64) bpf.SocketCounters {
		return bpf.SocketCounters{DatagramBalance: n, FlowNew: 1}
	}
	flows := func(n uint64) bpf.SocketCounters {
		return bpf.SocketCounters{DatagramBalance: n, FlowNew: n}
	}
	plain, all := rig.targets(h.family)
	busy := one(plain)
	busy.First = all[:longFlows]
	passBusy := func(n uint64) bpf.SocketCounters {
		return bpf.SocketCounters{DatagramPass: n - longFlows, DatagramBalance: longFlows, FlowNew: longFlows}
	}
	many := func(n uint64) bpf.SocketCounters {
		c := bpf.SocketCounters{DatagramBalance: n, FlowNew: min(n, uint64(len(all)))}
		if len(all) > socketFlows {
			// Each flow is evicted before its turn comes again.
			c.FlowNew, c.FlowEvicted = n, max(n, socketFlows)-socketFlows
		}
		return c
	}
	return []*hookCase{
		{name: caseEmpty, bare: true, call: rig.caller(one(plain)), counted: nothing},
		{name: casePlain, call: rig.caller(one(plain)), counted: pass},
		{name: casePlainOf, call: rig.caller(busy), counted: passBusy},
		{name: caseFlow, call: rig.caller(one(all[:1])), counted: flow},
		{name: caseNewFlow, call: rig.caller(each(all[:1])), counted: flows},
		{name: caseMany, call: rig.caller(one(all)), counted: many},
		{name: caseAllNew, call: rig.caller(each(all)), counted: flows},
	}
}

// receiveCases receive what the same process sends: each datagram also runs the program at sendmsg, which
// passes it.
func (rig *hookRig) receiveCases(h hook) []*hookCase {
	plain := func(n uint64) bpf.SocketCounters {
		return bpf.SocketCounters{DatagramPass: n + 1} // includes the first request
	}
	answer := func(n uint64) bpf.SocketCounters {
		return bpf.SocketCounters{DatagramPass: n, DatagramBalance: 1, FlowNew: 1, DatagramName: n}
	}
	service := netip.AddrPortFrom(harness.ClusterIP(ownService, h.family), harness.ServicePort)
	return []*hookCase{
		{name: caseEmpty, bare: true, call: rig.receiver(h.family, netip.AddrPort{}), counted: nothing},
		{name: casePlain, call: rig.receiver(h.family, netip.AddrPort{}), counted: plain},
		{name: caseAnswer, counted: answer, call: rig.receiver(h.family, service)},
	}
}

func nothing(uint64) bpf.SocketCounters { return bpf.SocketCounters{} }

// targets are an endpoint, which is no Service, and all Services in random order.
func (rig *hookRig) targets(family string) (plain, all []netip.AddrPort) {
	plain = []netip.AddrPort{netip.AddrPortFrom(rig.many.Endpoint(family, 0, 0), harness.ServerPort)}
	for _, i := range rand.New(rand.NewPCG(1, 2)).Perm(rig.many.Services) {
		all = append(all, rig.many.Address(family, i))
	}
	return plain, all
}

func (rig *hookRig) caller(config endpoint.CallerConfig) func(context.Context, *lab.Host, int) error {
	return func(ctx context.Context, pod *lab.Host, calls int) error {
		config.Calls, config.CPU = calls, rig.cpu
		return endpoint.RunCaller(ctx, pod, config)
	}
}

// receiver sends to a Service with the pod itself as its backend or, if that is not given, to the pod.
func (rig *hookRig) receiver(family string, service netip.AddrPort) func(context.Context, *lab.Host, int) error {
	return func(ctx context.Context, pod *lab.Host, calls int) error {
		config := endpoint.ReceiverConfig{Sender: netip.AddrPortFrom(harness.AddressOf(pod, family), harness.ServerPort), Asked: service, Calls: calls, CPU: rig.cpu}
		if !service.IsValid() {
			config.Asked = config.Sender
		}
		return endpoint.RunReceiver(ctx, pod, config)
	}
}

// run makes calls, and proves that each of them ran the program once with the right decision. It returns the
// time of one.
func (c *hookCase) run(ctx context.Context, rig *hookRig, calls int) (nanoseconds float64, err error) {
	pod := rig.world.Host(hookedPod)
	if c.bare {
		pod = rig.world.Host(barePod)
	}
	counters, err := rig.world.Counters()
	if err != nil {
		return 0, err
	}
	before, err := c.program.Stats()
	if err != nil {
		return 0, err
	}
	if err := c.call(ctx, pod, calls); err != nil {
		return 0, err
	}
	after, err := c.program.Stats()
	if err != nil {
		return 0, err
	}
	if runs := after.RunCount - before.RunCount; runs != uint64(calls) {
		return 0, fmt.Errorf("%d calls ran the program %d times", calls, runs)
	}
	nanoseconds = float64((after.Runtime - before.Runtime).Nanoseconds()) / float64(calls)
	now, err := rig.world.Counters()
	if err != nil {
		return 0, err
	}
	return nanoseconds, prove(counters, now, c.counted(uint64(calls)), 0)
}
