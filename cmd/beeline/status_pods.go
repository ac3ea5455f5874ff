// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/util/printable"
)

// statusPods prints the devices of pods, with what keeps them from the pod shortcut, and the packets by their path.
func statusPods(w io.Writer, s *api.Pods) {
	if s == nil {
		return
	}
	fmt.Fprintf(w, "\nPod shortcut: %s\n", s.Line())
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, d := range s.Devices {
		var addresses []string
		for _, a := range d.PodAddresses {
			addresses = append(addresses, a.String())
		}
		fmt.Fprintf(t, "  %s\t%s\t%s\n", printable.Line(d.Name), podPath(&d), strings.Join(addresses, ", "))
		for _, f := range d.PacketFilters {
			fmt.Fprintf(t, "  \t\t%s\n", printable.Line(f))
		}
	}
	for _, path := range slices.Sorted(maps.Keys(s.Packets)) {
		if n := s.Packets[path]; n > 0 {
			fmt.Fprintf(t, "  packets\t%s\t%d\n", path, n)
		}
	}
	t.Flush()
}

// podPath is the path of a device's packets in one word or two.
func podPath(d *api.PodDevice) string {
	switch {
	case d.PodUnknown:
		return "no pod is known"
	case !d.Shortcut:
		return "stack"
	case len(d.PacketFilters) > 0:
		return "shortcut, bypassing"
	}
	return "shortcut"
}
