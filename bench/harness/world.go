// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"beeline.io/beeline/bench/endpoint"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// A World is a lab for measurements.
type World struct {
	*lab.Lab
	Folder  string // of the agents' manifests, removed with the lab
	Agents  []*node.Agent
	Servers map[string]*endpoint.Server // by pod
}

// NewWorld creates a lab. However this program ends, nothing of it remains: the lab's processes end with this
// one, and the next run removes the rest.
func NewWorld() (*World, error) { return NewWorldOf(lab.Shape{}) }

// NewWorldOf creates a lab with another shape.
func NewWorldOf(shape lab.Shape) (*World, error) {
	l, err := lab.Up(lab.Config{Temporary: true, Shape: shape})
	if err != nil {
		return nil, err
	}
	w := &World{Lab: l, Servers: map[string]*endpoint.Server{}}
	w.Folder = filepath.Join(l.Host("node-a").RunDir, "manifests")
	err = os.Mkdir(w.Folder, 0o755)
	if err == nil {
		err = node.WriteManifest(w.Folder, "cluster.yaml", node.Cluster(l)...)
	}
	if err != nil {
		return nil, errors.Join(err, l.Down())
	}
	return w, nil
}

// End takes the lab down.
func (w *World) End() error {
	for _, s := range w.Servers {
		s.Stop()
	}
	for _, a := range w.Agents {
		a.Kill() // its state is removed with the lab
	}
	return w.Down()
}

// StartAgent starts an agent on a node, in a mode of the edge (empty: the lab's default), and waits until it is ready.
func (w *World) StartAgent(program, host, mode string, flags ...string) (*node.Agent, error) {
	a := &node.Agent{Host: w.Host(host), Program: program, Manifests: w.Folder, EdgeMode: mode, Flags: flags}
	w.Agents = append(w.Agents, a)
	return a, a.Start()
}

// Addresses and ports of the measured Services and the servers.
const (
	ServicePort = 80
	ServerPort  = 8080
)

// AddService writes a Service with one pod as its backend.
func (w *World) AddService(name string, number uint8, backend *lab.Host, ports ...node.Port) error {
	service, slices := node.Service(name, number), node.Slices(name, backend)
	node.SetPorts(service, slices, ports...)
	return node.WriteManifest(w.Folder, name+".yaml", Objects(service, slices)...)
}

// Objects are a Service and its slices, as one list.
func Objects(service *corev1.Service, slices []*discoveryv1.EndpointSlice) []runtime.Object {
	all := []runtime.Object{service}
	for _, slice := range slices {
		all = append(all, slice)
	}
	return all
}

// AddressOf is the address of a host in a family.
func AddressOf(h *lab.Host, family string) netip.Addr {
	if family == "IPv6" {
		return h.Addr6
	}
	return h.Addr4
}

// ClusterIP is the cluster IP of the Service with a number, in a family.
func ClusterIP(number uint8, family string) netip.Addr {
	return netip.MustParseAddr(node.ClusterIPs(number)[slices.Index(BothFamilies, family)])
}

// RunOn runs a command on a host, with an input.
func RunOn(ctx context.Context, host *lab.Host, input string, argv ...string) error {
	cmd := host.Command(ctx, argv...)
	cmd.Stdin = strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("host %s: %s: %w: %s", host.Name, strings.Join(argv, " "), err, out)
	}
	return nil
}

// StartServer starts a server in a pod, on a CPU.
func (w *World) StartServer(ctx context.Context, pod string, cpu int) error {
	s, err := endpoint.StartServer(ctx, w.Host(pod), ServerPort, cpu)
	if err == nil {
		w.Servers[pod] = s
	}
	return err
}

// Counters is the sum of all agents' hook counters.
func (w *World) Counters() (bpf.SocketCounters, error) {
	var sum bpf.SocketCounters
	for _, a := range w.Agents {
		c, err := bpf.ReadCounters(a.BPFFS())
		if err != nil {
			return sum, err
		}
		sum = Combine(sum, *c, func(a, b uint64) uint64 { return a + b })
	}
	return sum, nil
}

// The hooks on the path of traffic.
var trafficHooks = []ebpf.AttachType{
	ebpf.AttachCGroupInet4Connect, ebpf.AttachCGroupInet6Connect,
	ebpf.AttachCGroupUDP4Sendmsg, ebpf.AttachCGroupUDP6Sendmsg,
	ebpf.AttachCGroupUDP4Recvmsg, ebpf.AttachCGroupUDP6Recvmsg,
}

// ProveHooks checks that traffic of pods runs through so many programs, whoever attached them and wherever
// above the pods.
func (w *World) ProveHooks(want int) error {
	for _, pod := range w.Pods() {
		cgroup, err := os.Open(pod.Cgroup)
		if err != nil {
			return err
		}
		defer cgroup.Close()
		for _, hook := range trafficHooks {
			found, err := link.QueryPrograms(link.QueryOptions{
				Target: int(cgroup.Fd()), Attach: hook, QueryFlags: unix.BPF_F_QUERY_EFFECTIVE,
			})
			if err != nil {
				return fmt.Errorf("pod %s: %s: %w", pod.Name, hook, err)
			}
			if n := len(found.Programs); n != want {
				return fmt.Errorf("pod %s: its traffic runs through %d programs at %s instead of %d: is something attached to the machine's own cgroups?",
					pod.Name, n, hook, want)
			}
		}
	}
	return nil
}

// Combine combines each pair of counters with the same name.
func Combine(a, b bpf.SocketCounters, of func(a, b uint64) uint64) bpf.SocketCounters {
	result := reflect.ValueOf(&a).Elem()
	for i := range result.NumField() {
		if field := result.Field(i); field.CanSet() {
			field.SetUint(of(field.Uint(), reflect.ValueOf(b).Field(i).Uint()))
		}
	}
	return a
}

// SweepTimeout is for GC passes over all flows. One is due every ten seconds, but after one that took more than
// half a second, as on a busy machine, a minute later.
const SweepTimeout = 5 * time.Minute

// AwaitUntracked waits until an agent has untracked Services, none of which still has a history of earlier
// flows.
func AwaitUntracked(ctx context.Context, agent *node.Agent) (*bpf.Tables, error) {
	tables, err := bpf.OpenTables(agent.BPFFS())
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(SweepTimeout); ; time.Sleep(50 * time.Millisecond) {
		untracked, contested, err := UntrackedServices(tables)
		if err != nil || untracked > 0 && contested == 0 {
			return tables, err
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return nil, fmt.Errorf("%s: %d of %d untracked Services are contested after %s", agent.Host.Name, contested, untracked, SweepTimeout)
		}
	}
}

// UntrackedServices counts the untracked service ports, and those with contested slots.
func UntrackedServices(tables *bpf.Tables) (all, contested int, err error) {
	index, err := tables.Frontends.All()
	untracked := map[uint32]bool{}
	for _, number := range index {
		f, err := codec.LoadFrontend(tables, number)
		if err != nil {
			return 0, 0, err
		}
		if f.Untracked() {
			untracked[f.Port()] = untracked[f.Port()] || f.HasHistory()
		}
	}
	for _, history := range untracked {
		if history {
			contested++
		}
	}
	return len(untracked), contested, err
}
