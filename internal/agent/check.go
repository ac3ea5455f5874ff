// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"io"
	"log/slog"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/pinfs"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/cluster/source"
	"beeline.io/beeline/internal/cluster/source/kube"
	"beeline.io/beeline/internal/node"
	"beeline.io/beeline/internal/report/assess"
	"beeline.io/beeline/internal/report/condition"
)

// Checked is the result of Check.
type Checked struct {
	Conditions condition.List `json:"conditions"`
	// Source is the path of the manifests, or the API server, which is not contacted.
	Source        string `json:"source"`
	FromManifests bool   `json:"fromManifests"`
	Services      int    `json:"services"` // and Pods with hostPorts
	Frontends     int    `json:"frontends"`
}

// Check reports the problems of a complete configuration. It changes nothing and contacts no server.
func Check(config Config) (*Checked, error) {
	c := &Checked{Source: config.Manifests, FromManifests: config.Manifests != ""}
	if err := errors.Join(pinfs.CheckPath(config.BPFFS), checkSocketPath(config.Socket), bpf.CheckCgroupRoot(config.CgroupRoot)); err != nil {
		return nil, err
	}
	c.Conditions = config.Components.Check()
	if !c.FromManifests {
		server, err := kube.New(kube.Options{Kubeconfig: config.Kubeconfig, NodeName: config.NodeName, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
		if err != nil {
			return nil, err
		}
		c.Source = server.Server()
		return c, nil
	}
	state, err := newManifests(&config).Load()
	problems := source.Problems(nil)
	if !errors.As(err, &problems) && err != nil {
		return nil, err
	}
	for _, p := range append(problems, state.Warnings...) {
		c.Conditions = append(c.Conditions, p.Condition())
	}
	if err == nil {
		if err := c.resolve(config, state.Objects); err != nil {
			return nil, err
		}
	}
	c.Conditions = assess.Placed(c.Conditions)
	return c, nil
}

// resolve reports requests of objects that a node with this machine's addresses would not fulfil.
func (c *Checked) resolve(config Config, objects []service.Object) error {
	addresses, err := localAddresses(new(node.Network))
	if err != nil {
		return err
	}
	changes := make([]service.Change, len(objects))
	for i, o := range objects {
		changes[i] = service.Change{Ref: o.Ref(), Object: o}
	}
	if config.IgnoreAnnotations {
		changes = service.WithoutAnnotations(changes)
	}
	table := service.NewCluster(config.Service)
	table.SetLocalAddresses(addresses)
	table.Apply(changes)
	unknown := service.NewUnknownAnnotations()
	unknown.Apply(changes)
	for owner, plan := range table.Owners() {
		c.Services++
		c.Frontends += len(plan.Frontends)
		for _, p := range plan.Problems {
			c.Conditions = append(c.Conditions, p.At(owner.String()))
		}
	}
	for _, list := range [][]service.ObjectProblem{table.OrphanSlices(), config.Components.CheckObjects(config.NodeName, changes), unknown.Problems()} {
		for _, p := range list {
			c.Conditions = append(c.Conditions, p.Problem.At(p.Object.String()))
		}
	}
	if table.UnknownNode() {
		c.Conditions = append(c.Conditions, assess.NodeUnknown(config.NodeName))
	}
	if uint32(c.Frontends) > config.Limits.Frontends {
		c.Conditions = append(c.Conditions, condition.ObjectLeftOut.New("the objects have %d frontends, and %d fit", c.Frontends, config.Limits.Frontends).Do("raise --max-frontends"))
	}
	return nil
}

// checkSocketPath rejects a path that is too long for a unix socket.
func checkSocketPath(path string) error {
	if len(path) > maxSocketPath {
		return fmt.Errorf("--agent-socket %s: longer than %d characters, the limit of a unix socket's path: choose a shorter path", path, maxSocketPath)
	}
	return nil
}
