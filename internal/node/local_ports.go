// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"beeline.io/beeline/internal/node/netdev"
)

// LocalPorts are the ports that the kernel chooses from for sockets that name none (ip(7), ip_local_port_range).
type LocalPorts struct {
	First, Last uint16
	// Reserved are those among them that it leaves out (ip_local_reserved_ports).
	Reserved map[uint16]bool
	// ReservedText is ip_local_reserved_ports as the kernel prints it, such as "8080,9000-9010".
	ReservedText string
}

// Has reports whether the kernel may choose a port.
func (p LocalPorts) Has(port uint16) bool {
	return p.First <= port && port <= p.Last && !p.Reserved[port]
}

// ReadLocalPorts reads the settings of this network namespace.
func ReadLocalPorts() (p LocalPorts, _ error) {
	text, err := os.ReadFile(netdev.SysctlRoot + "/ipv4/ip_local_port_range")
	if err == nil {
		_, err = fmt.Sscan(string(text), &p.First, &p.Last)
	}
	if err != nil {
		return p, fmt.Errorf("read ip_local_port_range: %w", err)
	}
	if text, err = os.ReadFile(netdev.SysctlRoot + "/ipv4/ip_local_reserved_ports"); err != nil {
		return p, fmt.Errorf("read ip_local_reserved_ports: %w", err)
	}
	p.ReservedText = strings.TrimSpace(string(text))
	p.Reserved, err = parsePorts(p.ReservedText)
	return p, err
}

// parsePorts parses ports and ranges of ports such as "8080,9000-9010".
func parsePorts(text string) (map[uint16]bool, error) {
	all := map[uint16]bool{}
	if text == "" {
		return all, nil
	}
	for _, part := range strings.Split(text, ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		first, err := strconv.ParseUint(from, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("ip_local_reserved_ports: %q: %w", part, err)
		}
		last, err := strconv.ParseUint(to, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("ip_local_reserved_ports: %q: %w", part, err)
		}
		for port := first; port <= last; port++ {
			all[uint16(port)] = true
		}
	}
	return all, nil
}
