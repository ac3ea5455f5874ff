// SPDX-License-Identifier: Apache-2.0

// Package controlplane runs a real Kubernetes control plane on the fabric of a lab: etcd, the API server and,
// if wanted, controllers; and kube-proxy on the lab's nodes. All of it is one program, build/controlplane
// (test/cluster/cmd/controlplane), which `make controlplane` builds.
//
// The control plane is in the fabric's network namespace and its files are in the fabric's directory, so that
// those of several labs run side by side, and are removed with their lab.
package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"

	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// ControlPlane is a control plane that runs on a lab. Methods that start or stop
// programs are not safe for concurrent use, all others are.
type ControlPlane struct {
	Lab *lab.Lab
	// Dir holds its files, logs and kubeconfigs among them.
	Dir string
	// ProxyProgram is a kube-proxy of another version for proxies that are started from now on; empty: that of the
	// control plane.
	ProxyProgram string

	program                            string
	controllers                        []string
	client                             *http.Client
	credentials                        credentials
	tokens                             map[string]string // by user
	etcd, apiServer, controllerManager *Process
	proxies                            []*Proxy
}

// Program is the path where make builds the control plane's program in the sources of this package.
func Program() (string, error) {
	folder, err := node.Sources()
	if err != nil {
		return "", err
	}
	return filepath.Join(folder, "build", "controlplane"), nil
}

// Find returns an error if there is no control plane program at a path.
func Find(program string) error {
	info, err := os.Stat(program)
	if err == nil && (info.IsDir() || info.Mode()&0o111 == 0) {
		err = fmt.Errorf("%s is no program", program)
	}
	if err != nil {
		return fmt.Errorf("no Kubernetes to run (`make controlplane` builds it): %w", err)
	}
	return nil
}

// Start starts a control plane on a temporary lab, with the named controllers of kube-controller-manager;
// without any, the caller writes EndpointSlices and the like. It returns when the API server is ready, its
// default Service exists and the controller manager serves. On error nothing runs.
func Start(ctx context.Context, l *lab.Lab, program string, controllers ...string) (c *ControlPlane, err error) {
	if !l.Temporary {
		return nil, fmt.Errorf("lab %s outlives this process, and a control plane cannot: use a temporary lab", l.Name)
	}
	if err := Find(program); err != nil {
		return nil, err
	}
	if program, err = filepath.Abs(program); err != nil {
		return nil, err
	}
	c = &ControlPlane{
		Lab: l, Dir: filepath.Join(l.Host("fabric").Dir, "controlplane"),
		program: program, controllers: controllers, tokens: map[string]string{},
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("control plane on lab %s: %w", l.Name, err), c.Stop())
		}
	}()
	if err := os.Mkdir(c.Dir, 0o700); err != nil {
		return c, err
	}
	if err := c.writeCredentials(); err != nil {
		return c, err
	}
	if c.client, err = c.newHTTPClient(); err != nil {
		return c, err
	}
	c.etcd = c.process("etcd", etcdFlags(c))
	c.apiServer = c.process("kube-apiserver", apiServerFlags(c))
	if len(controllers) > 0 {
		c.controllerManager = c.process("kube-controller-manager", controllerManagerFlags(c))
	}
	if err := c.etcd.start(); err != nil {
		return c, err
	}
	// The API server would retry only after a second.
	if err := c.etcd.await(ctx, "accepting connections", c.connects(etcdAddress)); err != nil {
		return c, err
	}
	return c, c.StartAPIServer(ctx)
}

// process prepares a program of the control plane.
func (c *ControlPlane) process(name string, flags []string) *Process {
	return &Process{
		Name: name, Host: c.Lab.Host("fabric"), Log: c.path(name + ".log"),
		argv: append([]string{c.program, name}, flags...),
	}
}

// StartAPIServer starts the API server after StopAPIServer or KillAPIServer, and returns when it is ready. It
// restarts the controllers: they might notice the server's return only after a minute.
func (c *ControlPlane) StartAPIServer(ctx context.Context) error {
	if c.controllerManager != nil {
		if err := c.controllerManager.end(syscall.SIGKILL); err != nil {
			return err
		}
	}
	if err := c.apiServer.start(); err != nil {
		return err
	}
	if err := c.apiServer.await(ctx, "ready, with its default Service", c.ready); err != nil {
		return err
	}
	if c.controllerManager == nil {
		return nil
	}
	if err := c.controllerManager.start(); err != nil {
		return err
	}
	return c.controllerManager.await(ctx, "accepting connections", c.connects(controllerManagerAddress))
}

// StopAPIServer stops the API server as a service manager does: connections to
// it break, and new ones are refused.
func (c *ControlPlane) StopAPIServer() error { return c.apiServer.end(syscall.SIGTERM) }

// KillAPIServer stops the API server as a crash does.
func (c *ControlPlane) KillAPIServer() error { return c.apiServer.end(syscall.SIGKILL) }

// Stop ends the control plane and its kube-proxies. The proxies' rules stay, and so does the lab.
func (c *ControlPlane) Stop() error {
	var errs []error
	for _, p := range c.Processes() {
		errs = append(errs, p.end(syscall.SIGKILL))
	}
	return errors.Join(errs...)
}

// Processes are all prepared processes, those that others need last.
func (c *ControlPlane) Processes() []*Process {
	var all []*Process
	for _, proxy := range c.proxies {
		all = append(all, proxy.process)
	}
	for _, p := range []*Process{c.controllerManager, c.apiServer, c.etcd} {
		if p != nil {
			all = append(all, p)
		}
	}
	return all
}

// Address is the API server's address for all hosts of the lab.
func (c *ControlPlane) Address() netip.AddrPort {
	return netip.AddrPortFrom(c.Lab.Host("fabric").Addr4, apiServerPort)
}

func (c *ControlPlane) url() string { return "https://" + c.Address().String() }

// path is the path of a file of the control plane.
func (c *ControlPlane) path(name string) string { return filepath.Join(c.Dir, name) }

// connects tries an address of the fabric.
func (c *ControlPlane) connects(address string) func(context.Context) error {
	return func(ctx context.Context) error {
		conn, err := c.Lab.Host("fabric").Dial(ctx, "tcp", address)
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

// ready checks the API server's own readiness, and the last objects that it creates for itself.
func (c *ControlPlane) ready(ctx context.Context) error {
	if err := c.request(ctx, http.MethodGet, "/readyz", nil); err != nil {
		return err
	}
	for _, path := range []string{services, endpointSlices} {
		if err := c.request(ctx, http.MethodGet, path+"/kubernetes", nil); err != nil {
			return err
		}
	}
	return nil
}
