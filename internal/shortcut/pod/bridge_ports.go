// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"

	"beeline.io/beeline/internal/node"
)

// bridgePorts finds the pods behind ports that their bridge does not forward for: the program is before the bridge.
func (f *finder) bridgePorts(s surroundings) ([]filter, error) {
	some := false
	for device := range s.behind {
		some = some || s.network.device(s.network.device(device).Master).IsBridge()
	}
	if !some {
		return nil, nil
	}
	ports, err := f.network.BridgePorts()
	if err != nil {
		return nil, err
	}
	return s.portFilters(ports), nil
}

// portFilters are about pods' ports that are stopped, and about those isolated from each other.
func (s *surroundings) portFilters(ports map[int]node.BridgePort) (all []filter) {
	isolated := map[int][]int{} // devices by their bridge
	for device := range s.behind {
		p, ok := ports[device]
		if !ok {
			continue
		}
		if p.Stopped != "" {
			all = append(all, filter{device: device, what: fmt.Sprintf("port of bridge %s: %s", s.network.device(p.Bridge).Name, p.Stopped)})
		}
		if p.Isolated {
			isolated[p.Bridge] = append(isolated[p.Bridge], device)
		}
	}
	for bridge, devices := range isolated {
		if len(devices) < 2 {
			continue
		}
		for _, device := range devices {
			all = append(all, filter{device: device, what: fmt.Sprintf("port of bridge %s: isolated", s.network.device(bridge).Name)})
		}
	}
	return all
}
