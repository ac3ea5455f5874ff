// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/runtime"

	"beeline.io/beeline/bench/endpoint"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// A world is a lab for measurements.
type world struct {
	*lab.Lab
	folder  string // of the agents' manifests, removed with the lab
	agents  []*node.Agent
	servers map[string]*endpoint.Server // by pod
}

// newWorld creates a lab. However this program ends, nothing of it remains: the lab's processes end with this
// one, and the next run removes the rest.
func newWorld() (*world, error) { return newWorldOf(lab.Shape{}) }

// newWorldOf creates a lab with another shape.
func newWorldOf(shape lab.Shape) (*world, error) {
	l, err := lab.Up(lab.Config{Temporary: true, Shape: shape})
	if err != nil {
		return nil, err
	}
	w := &world{Lab: l, servers: map[string]*endpoint.Server{}}
	w.folder = filepath.Join(l.Host("node-a").RunDir, "manifests")
	err = os.Mkdir(w.folder, 0o755)
	if err == nil {
		err = node.WriteManifest(w.folder, "cluster.yaml", node.Cluster(l)...)
	}
	if err != nil {
		return nil, errors.Join(err, l.Down())
	}
	return w, nil
}

// end takes the lab down.
func (w *world) end() error {
	for _, s := range w.servers {
		s.Stop()
	}
	for _, a := range w.agents {
		a.Kill() // its state is removed with the lab
	}
	return w.Down()
}

// startAgent starts an agent on a node, and waits until it is ready.
func (w *world) startAgent(program, host string) (*node.Agent, error) {
	a := &node.Agent{Host: w.Host(host), Program: program, Manifests: w.folder}
	w.agents = append(w.agents, a)
	return a, a.Start()
}

// Addresses and ports of the measured Services and the servers.
const (
	servicePort = 80
	serverPort  = 8080
)

// addService writes a Service with one pod as its backend.
func (w *world) addService(name string, number uint8, backend *lab.Host, ports ...node.Port) error {
	service, slices := node.Service(name, number), node.Slices(name, backend)
	node.SetPorts(service, slices, ports...)
	objects := []runtime.Object{service}
	for _, slice := range slices {
		objects = append(objects, slice)
	}
	return node.WriteManifest(w.folder, name+".yaml", objects...)
}

func (w *world) startServer(ctx context.Context, pod string, cpu int) error {
	s, err := endpoint.StartServer(ctx, w.Host(pod), serverPort, cpu)
	if err == nil {
		w.servers[pod] = s
	}
	return err
}

// counters is the sum of all agents' hook counters.
func (w *world) counters() (bpf.SocketCounters, error) {
	var sum bpf.SocketCounters
	for _, a := range w.agents {
		c, err := bpf.ReadCounters(a.BPFFS())
		if err != nil {
			return sum, err
		}
		sum = combine(sum, *c, func(a, b uint64) uint64 { return a + b })
	}
	return sum, nil
}

// The hooks on the path of traffic.
var trafficHooks = []ebpf.AttachType{
	ebpf.AttachCGroupInet4Connect, ebpf.AttachCGroupInet6Connect,
	ebpf.AttachCGroupUDP4Sendmsg, ebpf.AttachCGroupUDP6Sendmsg,
	ebpf.AttachCGroupUDP4Recvmsg, ebpf.AttachCGroupUDP6Recvmsg,
}

// proveHooks checks that traffic of pods runs through so many programs, whoever attached them and wherever
// above the pods.
func (w *world) proveHooks(want int) error {
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

// combine combines each pair of counters with the same name.
func combine(a, b bpf.SocketCounters, of func(a, b uint64) uint64) bpf.SocketCounters {
	result := reflect.ValueOf(&a).Elem()
	for i := range result.NumField() {
		if field := result.Field(i); field.CanSet() {
			field.SetUint(of(field.Uint(), reflect.ValueOf(b).Field(i).Uint()))
		}
	}
	return a
}
