// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
)

// drops counts the packets that were dropped on the way of clients, by place: by this machine's CPUs, which are
// those of all hosts, by devices of the fabric and of node-a, and by the edge for a reason.
type drops map[string]uint64

// drops reads them. What cannot be read is left out: a device is gone, or no agent answers.
func (w *world) drops() drops {
	all := drops{"backlog of the CPUs": backlogDrops()}
	for _, host := range []string{"fabric", "node-a"} {
		w.Host(host).Do(func() error {
			links, err := netlink.LinkList()
			for _, l := range links {
				s := l.Attrs().Statistics
				all[host+" "+l.Attrs().Name] = s.RxDropped + s.TxDropped
			}
			return err
		})
	}
	if s, err := w.agent.Status(); err == nil && s.Edge != nil {
		for reason, n := range s.Edge.Counters {
			if strings.HasPrefix(reason, "drop_") {
				all["edge "+reason] = n
			}
		}
	}
	return all
}

// backlogDrops sums the second column of softnet_stat: packets for which a CPU's queue had no room.
func backlogDrops() (sum uint64) {
	text, err := os.ReadFile("/proc/net/softnet_stat")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 1 {
			n, _ := strconv.ParseUint(fields[1], 16, 64) // 0 if the format is another one
			sum += n
		}
	}
	return sum
}

// since describes what has grown since an earlier reading.
func (d drops) since(before drops) string {
	var all []string
	for _, place := range slices.Sorted(maps.Keys(d)) {
		if n := d[place]; n > before[place] {
			all = append(all, fmt.Sprintf("%s: %d", place, n-before[place]))
		}
	}
	return strings.Join(all, ", ")
}
