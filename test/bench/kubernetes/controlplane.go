// SPDX-License-Identifier: Apache-2.0

// Package kubernetes runs a real etcd, API server and kube-proxy in a lab, for the
// benchmarks that have kube-proxy as a side. No controllers run: EndpointSlices are
// what the caller writes. All of it is one program, build/controlplane
// (test/cluster/cmd/controlplane), which `make controlplane` builds.
package kubernetes

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
)

// The fabric is a network namespace of the lab's own, so these collide with
// nobody's.
const (
	apiServerPort   = 6443
	etcdAddress     = "127.0.0.1:2379"
	etcdPeerAddress = "127.0.0.1:2380"
)

// ControlPlane is an etcd and an API server on the fabric of a lab.
type ControlPlane struct {
	Lab *lab.Lab

	program         string
	client          *http.Client
	dir             string
	certificate     []byte
	token           string
	etcd, apiServer *process
	proxies         []*Proxy
}

// Find says why there is no control plane to be had at a path; nil if there is one.
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

// Start starts a control plane on a temporary lab, and returns when it is ready.
// On error nothing runs.
func Start(ctx context.Context, l *lab.Lab, program string) (c *ControlPlane, err error) {
	if err := Find(program); err != nil {
		return nil, err
	}
	if program, err = filepath.Abs(program); err != nil {
		return nil, err
	}
	c = &ControlPlane{Lab: l, program: program, dir: filepath.Join(l.Host("fabric").Dir, "kubernetes")}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("control plane: %w", err), c.Stop())
		}
	}()
	if err := os.Mkdir(c.dir, 0o700); err != nil {
		return c, err
	}
	if err := c.writeCredentials(); err != nil {
		return c, err
	}
	if c.client, err = c.newClient(); err != nil {
		return c, err
	}
	c.etcd = c.process("etcd", "--data-dir="+c.path("etcd"), "--listen-client="+etcdAddress, "--listen-peer="+etcdPeerAddress)
	if err := c.etcd.start(); err != nil {
		return c, err
	}
	// The API server would try again after a second only.
	if err := c.etcd.await(ctx, "accepting connections", c.reachEtcd); err != nil {
		return c, err
	}
	c.apiServer = c.process("kube-apiserver", c.apiServerFlags()...)
	if err := c.apiServer.start(); err != nil {
		return c, err
	}
	return c, c.apiServer.await(ctx, "ready, with its default Service", c.ready)
}

// Stop ends the control plane and its kube-proxies. What these have set up stays.
func (c *ControlPlane) Stop() error {
	var errs []error
	for _, p := range c.proxies {
		errs = append(errs, p.Stop())
	}
	for _, p := range []*process{c.apiServer, c.etcd} {
		if p != nil {
			errs = append(errs, p.end(syscall.SIGKILL))
		}
	}
	return errors.Join(errs...)
}

// Kubeconfig is the path of the administrator's kubeconfig file. It is right on all
// hosts of the lab.
func (c *ControlPlane) Kubeconfig() string { return c.path("admin.kubeconfig") }

func (c *ControlPlane) path(name string) string { return filepath.Join(c.dir, name) }

// address is where the API server serves, for all hosts of the lab.
func (c *ControlPlane) address() netip.AddrPort {
	return netip.AddrPortFrom(c.Lab.Host("fabric").Addr4, apiServerPort)
}

func (c *ControlPlane) url() string { return "https://" + c.address().String() }

func (c *ControlPlane) process(name string, flags ...string) *process {
	return &process{
		name: name, host: c.Lab.Host("fabric"), log: c.path(name + ".log"),
		argv: append([]string{c.program, name}, flags...),
	}
}

func (c *ControlPlane) apiServerFlags() []string {
	return []string{
		"--etcd-servers=http://" + etcdAddress,
		fmt.Sprintf("--secure-port=%d", apiServerPort),
		"--advertise-address=" + c.address().Addr().String(),
		"--tls-cert-file=" + c.path("server.crt"),
		"--tls-private-key-file=" + c.path("server.key"),
		"--token-auth-file=" + c.path("tokens.csv"),
		"--authorization-mode=RBAC",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + c.path("service-account.key"),
		"--service-account-signing-key-file=" + c.path("service-account.key"),
		fmt.Sprintf("--service-cluster-ip-range=%s,%s", lab.ServiceRange4, lab.ServiceRange6),
		// Nodes are as the caller writes them.
		"--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
		// Nobody here has to be held back.
		"--enable-priority-and-fairness=false",
		"--max-requests-inflight=0",
		"--max-mutating-requests-inflight=0",
	}
}

func (c *ControlPlane) reachEtcd(ctx context.Context) error {
	conn, err := c.Lab.Host("fabric").Dial(ctx, "tcp", etcdAddress)
	if err != nil {
		return err
	}
	return conn.Close()
}

// ready asks the API server for its own state, and for the Service that it makes for
// itself last.
func (c *ControlPlane) ready(ctx context.Context) error {
	if err := c.request(ctx, http.MethodGet, "/readyz", nil); err != nil {
		return err
	}
	return c.request(ctx, http.MethodGet, endpointSlices+"/kubernetes", nil)
}
