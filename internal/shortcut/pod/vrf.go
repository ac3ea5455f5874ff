// SPDX-License-Identifier: Apache-2.0

package pod

// vrfs finds the pods behind devices of a VRF, or behind the bridge of one. The stack routes what such a pod sends by
// the table of the VRF, and what others send to it only if their table leads there.
func (s *surroundings) vrfs() (all []filter) {
	for device := range s.behind {
		if master := s.network.device(s.network.device(device).Master); master.Kind == "vrf" {
			all = append(all, s.filtersAt(device, "VRF "+master.Name)...)
		}
	}
	return all
}
