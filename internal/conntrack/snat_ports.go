// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"fmt"
	"os"
	"slices"

	"beeline.io/beeline/internal/bpf"
)

// nodePorts is the API server's default for --service-node-port-range.
var nodePorts = bpf.PortRange{First: 30000, Last: 32767}

const localPortsPath = "/proc/sys/net/ipv4/ip_local_port_range"

// ParseSNATPorts parses one or two ranges such as 1024-29999, or single ports.
func ParseSNATPorts(texts []string) ([]bpf.PortRange, error) {
	var all []bpf.PortRange
	for _, text := range texts {
		r, err := bpf.ParsePortRange(text)
		if err != nil {
			return nil, fmt.Errorf("%q is not a range of ports such as 1024-29999", text)
		}
		all = append(all, r)
	}
	return all, checkRanges(all)
}

// LocalPorts returns the ports of the node's own connections (ip(7), ip_local_port_range).
func LocalPorts() (local bpf.PortRange, err error) {
	text, err := os.ReadFile(localPortsPath)
	if err != nil {
		return local, fmt.Errorf("read the ports of the node's own connections: %w", err)
	}
	if _, err := fmt.Sscan(string(text), &local.First, &local.Last); err != nil {
		return local, fmt.Errorf("%s: %w", localPortsPath, err)
	}
	return local, nil
}

// firstFreePort is the first port that is not a system port (RFC 6335 section 6).
const firstFreePort = 1024

// FreeSNATPorts returns the two largest ranges, or fewer if there are fewer, that neither the node's own
// connections nor NodePorts use, in ascending order. With Linux's default range these are 1024-29999 and
// 61000-65535.
func FreeSNATPorts(local bpf.PortRange) []bpf.PortRange {
	taken := func(port int) bool {
		one := bpf.PortRange{First: uint16(port), Last: uint16(port)}
		return port > 65535 || one.Overlaps(local) || one.Overlaps(nodePorts)
	}
	var free []bpf.PortRange
	first := firstFreePort
	for port := firstFreePort; port <= 65536; port++ {
		if !taken(port) {
			continue
		}
		if first < port {
			free = append(free, bpf.PortRange{First: uint16(first), Last: uint16(port - 1)})
		}
		first = port + 1
	}
	bySize := func(a, b bpf.PortRange) int { return int(b.Last-b.First) - int(a.Last-a.First) }
	slices.SortStableFunc(free, bySize)
	free = free[:min(len(free), 2)]
	slices.SortFunc(free, func(a, b bpf.PortRange) int { return int(a.First) - int(b.First) })
	return free
}

// checkRanges refuses ranges that the programs cannot use: more than two, empty ones, and overlapping
// ones.
func checkRanges(ranges []bpf.PortRange) error {
	if len(ranges) == 0 || len(ranges) > 2 {
		return fmt.Errorf("%d ranges: give one or two", len(ranges))
	}
	for _, r := range ranges {
		if r.First == 0 || r.First > r.Last {
			return fmt.Errorf("range %s: must go from a port above 0 to the same or a higher one", r)
		}
	}
	if len(ranges) == 2 && ranges[0].Overlaps(ranges[1]) {
		return fmt.Errorf("ranges %s and %s overlap", ranges[0], ranges[1])
	}
	return nil
}

// CheckSNATPorts returns an error if the node's own connections or NodePorts use ports of the ranges.
func CheckSNATPorts(ranges []bpf.PortRange, local bpf.PortRange) error {
	for _, r := range ranges {
		if r.Overlaps(local) {
			return fmt.Errorf("--snat-ports: %s overlaps %s, the ports of the node's own connections (net.ipv4.ip_local_port_range): "+
				"change one of them, or do not serve external clients (--edge-mode=off)", r, local)
		}
		if r.Overlaps(nodePorts) {
			return fmt.Errorf("--snat-ports: %s overlaps the NodePorts %s: give --snat-ports other ranges", r, nodePorts)
		}
	}
	return nil
}
