// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

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

// udpBufferDrops sums, for this network namespace, the datagrams for which the buffer of a socket had no room.
func udpBufferDrops() (sum uint64) {
	if text, err := os.ReadFile("/proc/thread-self/net/snmp6"); err == nil {
		for line := range strings.Lines(string(text)) {
			if fields := strings.Fields(line); len(fields) == 2 && fields[0] == "Udp6RcvbufErrors" {
				n, _ := strconv.ParseUint(fields[1], 10, 64)
				sum += n
			}
		}
	}
	text, err := os.ReadFile("/proc/thread-self/net/snmp")
	if err != nil {
		return sum
	}
	var names []string // of the values in the next line
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != "Udp:" {
			continue
		}
		if at := slices.Index(names, "RcvbufErrors"); at >= 0 && at < len(fields) {
			n, _ := strconv.ParseUint(fields[at], 10, 64)
			sum += n
		}
		names = fields
	}
	return sum
}

// queues notes when the queues of devices, CPUs or UDP sockets overflow. A machine that is busy with other work
// processes packets late; the ring of a veth with NAPI has 256 places, the buffer of a socket room for as many small
// datagrams.
type queues struct {
	mu     sync.Mutex
	total  map[string]uint64 // packets dropped, by host and queue
	rises  []time.Time
	places map[string]int // how often each queue overflowed
}

const queueInterval = 200 * time.Millisecond

// watch reads the counters until the world ends.
func (q *queues) watch(w *world) {
	for ticker := time.NewTicker(queueInterval); ; {
		q.read(w)
		select {
		case <-w.end:
			ticker.Stop()
			return
		case <-ticker.C:
		}
	}
}

// read notes the time if a queue has overflowed. A packet that the queue of a veth has no room for counts as dropped
// by the sending device; what programs and the stack drop does not.
func (q *queues) read(w *world) {
	now := map[string]uint64{"backlog": backlogDrops()}
	for _, host := range w.Hosts() {
		host.Do(func() error {
			now[host.Name+" UDP sockets"] = udpBufferDrops()
			links, err := netlink.LinkList()
			for _, l := range links {
				now[host.Name+" "+l.Attrs().Name] = l.Attrs().Statistics.TxDropped
			}
			return err
		})
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for place, n := range now {
		if before, known := q.total[place]; known && n > before {
			q.rises = append(q.rises, time.Now())
			q.places[place]++
		}
	}
	q.total = now
}

// overflowed reports whether a queue has overflowed since a time.
func (q *queues) overflowed(since time.Time) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.rises) > 0 && q.rises[len(q.rises)-1].After(since)
}
