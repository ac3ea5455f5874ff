// SPDX-License-Identifier: Apache-2.0

// Package gateway is the gateway as a component of the agent: established flows that this node forwards skip its IP
// stack (internal/gateway).
package gateway

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/component"
	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/gateway"
	"beeline.io/beeline/internal/netdev"
	"beeline.io/beeline/internal/wakeup"
)

// New returns the gateway. It is enabled by --gateway-devices.
func New() *component.Component {
	c := &config{}
	bpf := datapath.Gateway()
	return &component.Component{Name: bpf.Name, BPF: bpf, AddFlags: c.addFlags, Complete: c.complete, Options: c.options, New: c.run}
}

func (c *config) options(o *datapath.Options) {
	if c.enabled() {
		o.Gateway = &datapath.GatewayOptions{}
	}
}

type running struct {
	config *config
	env    component.Env
	flows  *gateway.Flows

	mu      sync.Mutex
	devices []int
}

func (c *config) run(env component.Env) (*component.Instance, error) {
	if !c.enabled() {
		return &component.Instance{}, nil
	}
	tables, err := env.Datapath.GatewayTables()
	if err != nil {
		return nil, err
	}
	r := &running{config: c, env: env}
	r.flows, err = gateway.NewFlows(tables, env.Datapath.WaitForReaders, gateway.Config{
		Threshold: c.threshold, Refuses: func(gateway.Flow) string { return "" }, Input: r.isInput, Log: env.Log,
	})
	if err != nil {
		return nil, err
	}
	return &component.Instance{
		Start: func() { r.attach() },
		Run:   []component.Task{{Name: "gateway", Run: r.flows.Run}, {Name: "gateway devices", Run: r.follow}},
	}, nil
}

func (r *running) isInput(device uint32) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Contains(r.devices, int(device))
}

func (r *running) attach() {
	links, err := netlink.LinkList()
	if err != nil {
		r.env.Log.Error("gateway", "error", err)
		return
	}
	var devices []int
	for _, l := range links {
		if slices.Contains(r.config.devices, l.Attrs().Name) {
			devices = append(devices, l.Attrs().Index)
		}
	}
	if err := r.env.Datapath.SetDevices(datapath.GatewayComponent, devices...); err != nil {
		r.env.Log.Error("gateway", "error", err)
	}
	r.mu.Lock()
	r.devices = devices
	r.mu.Unlock()
}

func (r *running) follow(ctx context.Context) error {
	changed := wakeup.NewSignal()
	go netdev.Watch(ctx, changed, unix.RTNLGRP_LINK)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
			time.Sleep(50 * time.Millisecond)
			r.attach()
		}
	}
}
