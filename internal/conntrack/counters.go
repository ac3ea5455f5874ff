// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/bpf"
)

// keepCounts adds the packets and bytes of a deleted entry to those of its service. If two processes
// do so for one service at the same time, the counts of one entry may be lost.
func keepCounts(collected *ebpf.Map, e *Entry) error {
	if collected == nil || e.Packets == 0 {
		return nil
	}
	var sum bpf.EdgeTCServiceTraffic
	if err := collected.Lookup(e.Lb.Service, &sum); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("read table %s: %w", bpf.EdgeTCMapServiceCollected, err)
	}
	if e.IsReply() {
		sum.ReceivedPackets += e.Packets
		sum.ReceivedBytes += e.Bytes
	} else {
		sum.SentPackets += e.Packets
		sum.SentBytes += e.Bytes
	}
	if err := collected.Put(e.Lb.Service, &sum); err != nil {
		return fmt.Errorf("write table %s: %w", bpf.EdgeTCMapServiceCollected, err)
	}
	return nil
}
