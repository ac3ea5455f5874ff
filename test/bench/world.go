// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/test/bench/endpoint"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// A world is a lab in which something is measured.
type world struct {
	*lab.Lab
	folder  string // of the agents' manifests, which goes with the lab
	agents  []*node.Agent
	servers map[string]*endpoint.Server // by pod
}

// newWorld makes a lab. Whatever ends this program, nothing of it remains: the
// lab's processes end with this one, and the next run sweeps the rest.
func newWorld() (*world, error) {
	l, err := lab.Up(lab.Config{Temporary: true})
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
		a.Kill() // its state goes with the lab
	}
	return w.Down()
}

// startAgent starts an agent on a node, and waits until it is ready.
func (w *world) startAgent(program, host string) (*node.Agent, error) {
	a := &node.Agent{Host: w.Host(host), Program: program, Manifests: w.folder}
	w.agents = append(w.agents, a)
	return a, a.Start()
}

func (w *world) startServer(ctx context.Context, pod string, cpu int) error {
	s, err := endpoint.StartServer(ctx, w.Host(pod), lab.PortTCP, cpu)
	if err == nil {
		w.servers[pod] = s
	}
	return err
}

// counters adds up what the hooks of all agents have counted.
func (w *world) counters() (datapath.SocketCounters, error) {
	var sum datapath.SocketCounters
	for _, a := range w.agents {
		c, err := datapath.ReadCounters(a.BPFFS())
		if err != nil {
			return sum, err
		}
		sum.ConnectPass += c.ConnectPass
		sum.ConnectBalance += c.ConnectBalance
		sum.ConnectReject += c.ConnectReject
		sum.ConnectDrop += c.ConnectDrop
		sum.ConnectFault += c.ConnectFault
		sum.RecordFailed += c.RecordFailed
	}
	return sum, nil
}

// proveHooks makes sure that connections from pods run through that many
// programs, whoever attached them and wherever above the pods.
func (w *world) proveHooks(want int) error {
	for _, pod := range w.Pods() {
		cgroup, err := os.Open(pod.Cgroup)
		if err != nil {
			return err
		}
		defer cgroup.Close()
		for _, hook := range []ebpf.AttachType{ebpf.AttachCGroupInet4Connect, ebpf.AttachCGroupInet6Connect} {
			found, err := link.QueryPrograms(link.QueryOptions{
				Target: int(cgroup.Fd()), Attach: hook, QueryFlags: unix.BPF_F_QUERY_EFFECTIVE,
			})
			if err != nil {
				return fmt.Errorf("pod %s: %s: %w", pod.Name, hook, err)
			}
			if n := len(found.Programs); n != want {
				return fmt.Errorf("pod %s: connections run through %d programs at %s instead of %d: is something attached to the machine's own cgroups?",
					pod.Name, n, hook, want)
			}
		}
	}
	return nil
}

// A path is what connections meet on their way.
type path string

const (
	unhooked path = "unhooked" // nothing of Beeline
	passed   path = "passed"   // the hook, which leaves them alone
	balanced path = "balanced" // the hook, which sends them to a backend
)

// prove says whether exactly n connections went that path, and no other did.
func prove(before, after datapath.SocketCounters, p path, n uint64) error {
	var wantPass, wantBalance uint64
	switch p {
	case passed:
		wantPass = n
	case balanced:
		wantBalance = n
	}
	pass, balance := after.ConnectPass-before.ConnectPass, after.ConnectBalance-before.ConnectBalance
	if pass != wantPass || balance != wantBalance {
		return fmt.Errorf("%d connections should have been %s; the hooks counted %d sent to a backend and %d left alone", n, p, balance, pass)
	}
	before.ConnectPass, before.ConnectBalance = after.ConnectPass, after.ConnectBalance
	if before != after {
		return fmt.Errorf("the hooks refused connections or failed: %+v before, %+v after", before, after)
	}
	return nil
}
