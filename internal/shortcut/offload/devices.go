// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"beeline.io/beeline/internal/node"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/shortcut/offload/devices"
)

// find returns the devices of flow offload.
func (c *config) find(network *node.Network) ([]Device, error) {
	all, err := devices.Read(network)
	if err != nil {
		return nil, err
	}
	chosen, _ := devices.Choose(all, c.devices.Patterns())
	found := make([]Device, len(chosen))
	for i, d := range chosen {
		found[i] = Device{
			Index: d.Index, Name: d.Name, Group: d.Group, Bridge: d.IsBridge(),
			Master: d.Above.Name, MasterIndex: d.Above.Index, MasterBridge: d.Above.IsBridge(),
		}
	}
	return found, nil
}

// unmatched returns what is wrong with --offload-devices on this machine.
func (c *config) unmatched(network *node.Network) (list condition.List) {
	if !c.enabled() {
		return nil
	}
	all, err := devices.Read(network)
	if err != nil {
		return condition.List{condition.OffloadFailed.New("devices: %s", err)}
	}
	chosen, unmatched := devices.Choose(all, c.devices.Patterns())
	for _, u := range unmatched {
		list = append(list, unmatchedCondition(u))
	}
	if len(chosen) == 1 {
		list = append(list, condition.OffloadDeviceAlone.New("--offload-devices: %s is the only device", chosen[0].Name))
	}
	if len(chosen) == 0 && len(unmatched) == 0 {
		list = append(list, condition.OffloadDeviceMissing.New("--offload-devices auto: no device of this node can be of flow offload"))
	}
	return list
}

func unmatchedCondition(u devices.Unmatched) condition.Condition {
	if u.Why == "" {
		return condition.OffloadDeviceMissing.New("--offload-devices %s: no such device", u.Pattern).At(u.Pattern)
	}
	return condition.OffloadDeviceMissing.New("--offload-devices %s: %s cannot be of flow offload: %s", u.Pattern, u.Device, u.Why).At(u.Pattern)
}
