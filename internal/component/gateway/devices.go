// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"beeline.io/beeline/internal/component"
	"beeline.io/beeline/internal/condition"
	"beeline.io/beeline/internal/gateway"
	"beeline.io/beeline/internal/gateway/devices"
)

// gateway returns the running gateway.
func (c *config) gateway(env component.Env) (*gateway.Gateway, error) {
	return gateway.New(env.Datapath, gateway.Config{
		Threshold: c.threshold, IgnoreFilters: c.ignoreFilters, Refuses: c.policy.Refuses, Log: env.Log,
		Devices: c.find,
	})
}

// find returns the devices of the gateway.
func (c *config) find() ([]gateway.Device, error) {
	all, err := devices.Read()
	if err != nil {
		return nil, err
	}
	chosen, _ := devices.Choose(all, c.patterns())
	found := make([]gateway.Device, len(chosen))
	for i, d := range chosen {
		found[i] = gateway.Device{
			Index: d.Index, Name: d.Name, Bridge: d.Kind == "bridge",
			Master: d.Master.Name, MasterIndex: d.Master.Index, MasterBridge: d.Master.Kind == "bridge",
		}
	}
	return found, nil
}

// unmatched returns what is wrong with --gateway-devices on this machine.
func (c *config) unmatched() (list condition.List) {
	if !c.enabled() {
		return nil
	}
	all, err := devices.Read()
	if err != nil {
		return condition.List{condition.GatewayFailed.New("devices: %s", err)}
	}
	chosen, unmatched := devices.Choose(all, c.patterns())
	for _, u := range unmatched {
		list = append(list, unmatchedCondition(u))
	}
	if len(chosen) == 0 && len(unmatched) == 0 {
		list = append(list, condition.GatewayDeviceMissing.New("--gateway-devices auto: no device of this node can be of the gateway"))
	}
	return list
}

func unmatchedCondition(u devices.Unmatched) condition.Condition {
	if u.Why == "" {
		return condition.GatewayDeviceMissing.New("--gateway-devices %s: no such device", u.Pattern).At(u.Pattern)
	}
	return condition.GatewayDeviceMissing.New("--gateway-devices %s: %s cannot be of the gateway: %s", u.Pattern, u.Device, u.Why).At(u.Pattern)
}
