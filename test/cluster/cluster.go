// SPDX-License-Identifier: Apache-2.0

// Package cluster makes a Kubernetes cluster of a lab: a real control plane with its controllers on the lab's
// fabric, and the lab's nodes and pods as Node and Pod objects whose status the test writes. The processes of
// the pods are those of the lab. The test chooses what runs on a node, kube-proxy or Beeline.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"beeline.io/beeline/test/controlplane"
	"beeline.io/beeline/test/lab"
)

// Cluster is a control plane on a lab, and a client of it. Its methods are safe for concurrent use, except
// those that start and stop programs.
type Cluster struct {
	*controlplane.ControlPlane
	// Client has all rights, and no rate limit.
	Client *kubernetes.Clientset

	marking sync.Mutex
	mark    Mark // the latest
}

// controllers are those that write what a Service proxy reads.
var controllers = []string{
	"endpointslice-controller",
	"endpointslice-mirroring-controller",
	"service-cidr-controller",
	"node-lifecycle-controller",
}

// Start starts a control plane on a temporary lab, and creates its Nodes and Pods. On error nothing runs.
func Start(ctx context.Context, l *lab.Lab) (c *Cluster, err error) {
	program, err := controlplane.Program()
	if err != nil {
		return nil, err
	}
	c = &Cluster{}
	if c.ControlPlane, err = controlplane.Start(ctx, l, program, controllers...); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("cluster on lab %s: %w", l.Name, err), c.Stop())
		}
	}()
	if c.Client, err = newClient(c.ClientConfig()); err != nil {
		return c, err
	}
	return c, c.createObjects(ctx)
}

func newClient(config *rest.Config) (*kubernetes.Clientset, error) {
	config.ContentConfig = rest.ContentConfig{
		ContentType:        "application/vnd.kubernetes.protobuf",
		AcceptContentTypes: "application/vnd.kubernetes.protobuf,application/json",
	}
	config.QPS = -1 // no limit
	config.WarningHandler = rest.NoWarnings{}
	return kubernetes.NewForConfig(config)
}
