// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"

	"beeline.io/beeline/internal/node/netdev"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/util/suggest"
)

// missing returns the names and patterns of --pod-devices that no device of a pod has, and pods that are in none of
// the pod networks. A pattern without a device is none on a node that has no pods yet.
func (s *surroundings) missing(wanted wish) (all condition.List) {
	devices := s.network.podLinks(nil)
	for _, pattern := range wanted {
		if why := s.network.missing(pattern, devices); why != "" {
			all = append(all, condition.PodDeviceMissing.New("--pod-devices %s: %s", pattern, why).At(pattern))
		}
	}
	if outside := s.outside(wanted); len(s.at) == 0 && len(outside) > 0 {
		networks := "none is known"
		if len(s.networks) > 0 {
			networks = fmt.Sprint(s.networks)
		}
		all = append(all, condition.PodNetworksMissed.New("no pod of this node is in the pod networks (%s), but devices of pods lead to %s", networks, strings.Join(atMost(outside), ", ")))
	}
	return all
}

func (n *network) missing(pattern string, pods map[int]*netdev.Device) string {
	matches := func(l *netdev.Device) bool {
		ok, _ := path.Match(pattern, l.Name)
		return ok
	}
	for _, l := range pods {
		if matches(l) {
			return ""
		}
	}
	var names []string
	for i := range n.devices {
		if matches(&n.devices[i]) {
			return fmt.Sprintf("%s is not the node's end of a pod's device, or is down", n.devices[i].Name)
		}
		names = append(names, n.devices[i].Name)
	}
	if strings.ContainsAny(pattern, `*?[\`) {
		if len(pods) == 0 {
			return ""
		}
		return "no device of a pod matches"
	}
	return "no such device" + cmp.Or(suggest.DidYouMean(pattern, append(names, "auto")), "; auto stands for all of pods")
}

// outside returns the addresses to which devices of pods lead and which are in none of the pod networks.
func (s *surroundings) outside(wanted wish) (all []string) {
	links := s.network.podLinks(wanted)
	in := func(a netip.Addr) bool {
		return s.network.own[a] || slices.ContainsFunc(s.networks, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	for _, r := range s.network.routes {
		if links[r.device] != nil && r.direct && r.to.IsSingleIP() && !r.to.Addr().IsLinkLocalUnicast() && !in(r.to.Addr()) {
			all = append(all, fmt.Sprintf("%s (%s)", r.to.Addr(), links[r.device].Name))
		}
	}
	return all
}
