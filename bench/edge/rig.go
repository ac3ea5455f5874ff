// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/bench/testrun"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/conntrack"
	"beeline.io/beeline/test/node"
)

// An edgeRig is a node whose edge was set up by an agent, with one family's flows. The agent has ended, so it
// does not disturb the measurement; its programs and tables stay.
type edgeRig struct {
	world   *harness.World
	family  string
	bpffs   string
	drivers map[string]*driver // by hook
	frames  *ebpf.Map
	flows   *conntrack.Tables
	open    []io.Closer

	own, gateway [6]byte
	direct       bool // the Services have DSR
	node         netip.Addr
	balancer     netip.Addr   // another node
	endpoints    []netip.Addr // of the remote Service
	local        netip.Addr   // of the local one
	plain        netip.Addr   // a pod of the node without Service
	sets         map[string]testrun.FrameSet
	used         uint32 // number of frames
}

// The hooks, named as in bpf.EdgeHook and by people.
const (
	hookXDP     = "xdp"
	hookIngress = "tc ingress"
	hookEgress  = "tc egress"
	hookTC      = "tc" // of a peer, at ingress or egress
)

const (
	remotePort, localPort = 30080, 30081 // NodePorts
	// A SNAT port for each flow to one endpoint: there are 33,512.
	remoteEndpoints = 100
)

// newRig sets up a node, with room for so many frames.
func newRig(ctx context.Context, b *harness.Bench, family string, size edgeSize, frames uint32) (rig *edgeRig, err error) {
	w, err := harness.NewWorld()
	if err != nil {
		return nil, err
	}
	rig = &edgeRig{world: w, family: family, direct: size.direct, drivers: map[string]*driver{}, sets: map[string]testrun.FrameSet{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, rig.end())
		}
	}()
	rig.name()
	if err := rig.addServices(); err != nil {
		return rig, err
	}
	if err := w.ReadyForXDP(); err != nil {
		return rig, err
	}
	var flags []string
	if size.records > 0 {
		flags = []string{"--max-flows", strconv.FormatUint(uint64(size.records), 10)}
	}
	agent, err := w.StartAgent(b.Program, "node-a", "xdp", flags...)
	rig.bpffs = agent.BPFFS()
	if err != nil {
		return rig, err
	}
	if rig.direct {
		if err := rig.settle(ctx, agent); err != nil {
			return rig, err
		}
	}
	if err := errors.Join(rig.waitForPrefilter(), agent.Stop()); err != nil {
		return rig, err
	}
	if err := rig.fixNeighbour(); err != nil {
		return rig, err
	}
	return rig, w.Host("node-a").Do(func() error { return rig.load(frames) })
}

// waitForPrefilter waits until the prefilter passes unrelated packets: the agent's first GC pass over flows
// shuts it.
func (rig *edgeRig) waitForPrefilter() error {
	m, err := ebpf.LoadPinnedMap(bpf.TablePath(rig.bpffs, bpf.EdgeTCMapPrefilters), nil)
	if err != nil {
		return err
	}
	rig.open = append(rig.open, m)
	prefilter, err := bpf.MapPrefilter(m, nil)
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(harness.SweepTimeout); !prefilter.Enabled(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("the prefilter is disabled after %s", harness.SweepTimeout)
		}
	}
	return nil
}

func (rig *edgeRig) end() error {
	for _, c := range rig.open {
		c.Close()
	}
	return rig.world.End()
}

// address is a host's in the rig's family.
func (rig *edgeRig) address(host string) netip.Addr {
	return harness.AddressOf(rig.world.Host(host), rig.family)
}

// name sets the packets' addresses. The endpoints are only addresses: node-b has fewer pods.
func (rig *edgeRig) name() {
	rig.node, rig.local, rig.plain = rig.address("node-a"), rig.address("a1"), rig.address("a2")
	rig.balancer = rig.address("node-b")
	for i := range remoteEndpoints {
		rig.endpoints = append(rig.endpoints, harness.Plus(rig.address("b1"), 100+i))
	}
}

// remoteSet is the set of requests to remotePort.
func remoteSet(direct bool) string {
	if direct {
		return setUntracked
	}
	return setRemote
}

func (rig *edgeRig) addServices() error {
	if rig.direct {
		return rig.addDirect(false)
	}
	nodePort := func(port int32) func(*corev1.Service) {
		return func(s *corev1.Service) {
			s.Spec.Type = corev1.ServiceTypeNodePort
			for i := range s.Spec.Ports {
				s.Spec.Ports[i].NodePort = port
			}
		}
	}
	return errors.Join(rig.addService("local", 1, nodePort(localPort), "node-a", rig.local),
		rig.addService("remote", 2, nodePort(remotePort), "node-b", rig.endpoints...))
}

// addService adds a Service with endpoints on one node; publish sets its addresses.
func (rig *edgeRig) addService(name string, number uint8, publish func(*corev1.Service), host string, all ...netip.Addr) error {
	service, slices := node.Service(name, number), node.Slices(name)
	node.SetPorts(service, slices,
		node.Port{Name: "tcp", Protocol: corev1.ProtocolTCP, Port: harness.ServicePort, Target: harness.ServerPort},
		node.Port{Name: "udp", Protocol: corev1.ProtocolUDP, Port: harness.ServicePort, Target: harness.ServerPort})
	publish(service)
	slice := slices[0]
	if all[0].Is6() {
		slice = slices[1]
	}
	ready := true
	for _, a := range all {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{a.String()}, NodeName: &host, Conditions: discoveryv1.EndpointConditions{Ready: &ready}})
	}
	return node.WriteManifest(rig.world.Folder, name+".yaml", []runtime.Object{service, slice}...)
}

// fixNeighbour makes the gateway's neighbour entry permanent, and stores the MAC addresses.
func (rig *edgeRig) fixNeighbour() error {
	far, err := harness.DeviceOf(rig.world.Host("fabric"), "node-a")
	if err != nil {
		return err
	}
	near, err := harness.DeviceOf(rig.world.Host("node-a"), "eth0")
	if err != nil {
		return err
	}
	rig.own, rig.gateway = [6]byte(near.HardwareAddr), [6]byte(far.HardwareAddr)
	return harness.SetNeighbour(rig.world.Host("node-a"), near.Index, harness.Gateways[rig.family], far.HardwareAddr)
}

// load puts the prelude in front of the programs that the agent has attached to eth0.
func (rig *edgeRig) load(frames uint32) error {
	device, err := harness.DeviceOf(rig.world.Host("node-a"), "eth0")
	if err != nil {
		return err
	}
	pod, err := harness.DeviceOf(rig.world.Host("node-a"), "a1")
	if err != nil {
		return err
	}
	if err := rig.openFlows(); err != nil {
		return err
	}
	err = harness.ProgramsAt(rig.bpffs, device.Index, func(hook bpf.EdgeHook, program *ebpf.Program) error {
		rig.open = append(rig.open, program)
		return rig.addDriver(hook, program, uint32(device.Index), uint32(pod.Index), frames)
	})
	if err != nil {
		return err
	}
	if len(rig.drivers) != 3 {
		return fmt.Errorf("the agent has attached programs to eth0 at %v, want all three hooks", slices.Sorted(maps.Keys(rig.drivers)))
	}
	return rig.fillMinimal()
}

func (rig *edgeRig) openFlows() error {
	tables := map[string]*ebpf.Map{}
	for _, name := range bpf.ConntrackTableNames() {
		m, err := ebpf.LoadPinnedMap(bpf.TablePath(rig.bpffs, name), nil)
		if err != nil {
			return err
		}
		rig.open, tables[name] = append(rig.open, m), m
	}
	rig.flows = conntrack.TablesOf(tables)
	return nil
}

// fillMinimal gives the yardstick the remote Service.
func (rig *edgeRig) fillMinimal() error {
	asked := netip.AddrPortFrom(rig.node, remotePort)
	if rig.direct {
		asked = rig.published(publishedRemote)
	}
	tables := rig.drivers[hookXDP].collection.Maps
	return testrun.FillMinimal(tables, asked, unix.IPPROTO_TCP, rig.endpoints...)
}
