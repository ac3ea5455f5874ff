// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"slices"

	"github.com/vishvananda/netlink"

	"beeline.io/beeline/internal/component"
	"beeline.io/beeline/internal/gateway"
	"beeline.io/beeline/internal/gateway/flow"
	"beeline.io/beeline/internal/netdev"
)

func (c *config) gateway(env component.Env) (*gateway.Gateway, error) {
	return gateway.New(env.Datapath, gateway.Config{
		Provider: gateway.Auto, Uncached: env.Datapath.Uncached, Threshold: c.threshold, Log: env.Log,
		Devices: func() (all []gateway.Device, err error) {
			links, err := netdev.Dump(netlink.LinkList)
			for _, l := range links {
				if slices.Contains(c.devices, l.Attrs().Name) {
					all = append(all, gateway.Device{Index: l.Attrs().Index, Name: l.Attrs().Name})
				}
			}
			return all, err
		},
		Refuses: func(flow.Flow) string { return "" },
	})
}
