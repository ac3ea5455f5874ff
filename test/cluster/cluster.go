// SPDX-License-Identifier: Apache-2.0

// Package cluster makes a Kubernetes cluster of a lab: a real etcd, API server
// and controller manager on the lab's fabric, and the lab's nodes and pods as
// Node and Pod objects whose status is written by the test. The processes of
// the pods are those of the lab. What runs on a node, kube-proxy or Beeline, is
// the test's choice.
//
// The control plane is in the fabric's network namespace and its files are in
// the fabric's directory, so that clusters of several labs run side by side, and
// all of it goes with the lab.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"

	"beeline.io/beeline/test/lab"
)

// startTimeout bounds the start of each program; a slow machine needs much of
// it.
const startTimeout = 2 * time.Minute

// pollInterval is how often what nothing announces is asked for.
const pollInterval = 20 * time.Millisecond

// Cluster is a control plane that runs on a lab. Its methods are safe for
// concurrent use, except those that start and stop programs.
type Cluster struct {
	Lab *lab.Lab
	// Client may do everything, as often as it likes.
	Client *kubernetes.Clientset
	// Dir holds the control plane's files, logs and kubeconfigs among them.
	Dir string

	program                            string // controlplane
	credentials                        credentials
	tokens                             map[string]string // of the users of users.go
	etcd, apiServer, controllerManager *process
	proxies                            []*KubeProxy

	marking sync.Mutex
	mark    Mark // the latest
}

// Start starts a control plane on the lab, which has to be a temporary one, and
// creates its Nodes and Pods. It returns when the API server is ready, the default
// Service exists and the controller manager serves. On error nothing runs.
func Start(ctx context.Context, l *lab.Lab) (c *Cluster, err error) {
	if !l.Temporary {
		return nil, fmt.Errorf("lab %s outlives this process, and a control plane cannot: use a temporary lab", l.Name)
	}
	c = &Cluster{Lab: l, Dir: filepath.Join(l.Host("fabric").Dir, "cluster"), tokens: map[string]string{}}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("cluster on lab %s: %w", l.Name, err), c.Stop())
		}
	}()
	if c.program, err = Program(); err != nil {
		return c, err
	}
	if err := os.Mkdir(c.Dir, 0o700); err != nil {
		return c, err
	}
	if err := c.writeFiles(); err != nil {
		return c, err
	}
	if err := c.startControlPlane(ctx); err != nil {
		return c, err
	}
	return c, c.createObjects(ctx)
}

// Address is where the API server serves, for all hosts of the lab.
func (c *Cluster) Address() netip.AddrPort {
	return netip.AddrPortFrom(c.Lab.Host("fabric").Addr4, apiServerPort)
}

// path is that of a file of the control plane.
func (c *Cluster) path(name string) string { return filepath.Join(c.Dir, name) }

// startControlPlane starts the three programs and waits for each.
func (c *Cluster) startControlPlane(ctx context.Context) error {
	c.etcd = c.process("etcd", c.etcdFlags())
	c.apiServer = c.process("kube-apiserver", c.apiServerFlags())
	c.controllerManager = c.process("kube-controller-manager", c.controllerManagerFlags())
	if err := c.etcd.start(); err != nil {
		return err
	}
	// The API server would try again after a second only.
	if err := c.await(ctx, c.etcd, "accepting connections", c.connects(etcdAddress)); err != nil {
		return err
	}
	return c.StartAPIServer(ctx)
}

// process prepares a program of the control plane.
func (c *Cluster) process(name string, flags []string) *process {
	return &process{
		name: name,
		host: c.Lab.Host("fabric"),
		argv: append([]string{c.program, name}, flags...),
		log:  c.path(name + ".log"),
	}
}

// connects tries an address of the fabric.
func (c *Cluster) connects(address string) func(context.Context) error {
	return func(ctx context.Context) error {
		conn, err := c.Lab.Host("fabric").Dial(ctx, "tcp", address)
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

// StartAPIServer starts the API server, also after StopAPIServer, and returns
// when it is ready. The controllers begin anew: after an absence they would look
// for it again only up to a minute later.
func (c *Cluster) StartAPIServer(ctx context.Context) error {
	if err := c.controllerManager.end(syscall.SIGKILL); err != nil {
		return err
	}
	if err := c.apiServer.start(); err != nil {
		return err
	}
	if err := c.await(ctx, c.apiServer, "ready, with its default Service", c.apiServerReady); err != nil {
		return err
	}
	if err := c.controllerManager.start(); err != nil {
		return err
	}
	return c.await(ctx, c.controllerManager, "accepting connections", c.connects(controllerManagerAddress))
}

// StopAPIServer stops the API server as a service manager does: connections to
// it break, and new ones are refused.
func (c *Cluster) StopAPIServer() error { return c.apiServer.end(syscall.SIGTERM) }

// KillAPIServer stops the API server as a crash does.
func (c *Cluster) KillAPIServer() error { return c.apiServer.end(syscall.SIGKILL) }

// Stop ends all programs of the cluster. The lab stays.
func (c *Cluster) Stop() error {
	var errs []error
	for _, p := range c.processes() {
		errs = append(errs, p.end(syscall.SIGKILL))
	}
	return errors.Join(errs...)
}

// processes are those that have been prepared, those that others need last.
func (c *Cluster) processes() []*process {
	var all []*process
	for _, proxy := range c.proxies {
		all = append(all, proxy.process)
	}
	for _, p := range []*process{c.controllerManager, c.apiServer, c.etcd} {
		if p != nil {
			all = append(all, p)
		}
	}
	return all
}

// await asks until ok returns nil. It fails as soon as the program ends.
func (c *Cluster) await(ctx context.Context, p *process, what string, ok func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		err := ok(ctx)
		if err == nil {
			return nil
		}
		if p.ended() {
			return fmt.Errorf("%s on %s ended (%v) before it was %s; it printed:\n%s", p.name, p.host.Name, p.err, what, p.logTail())
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s on %s is not %s: %w (last error: %w); it printed:\n%s", p.name, p.host.Name, what, ctx.Err(), err, p.logTail())
		case <-time.After(pollInterval):
		}
	}
}
