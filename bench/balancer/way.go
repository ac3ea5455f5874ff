// SPDX-License-Identifier: Apache-2.0

package balancer

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/bench/web"
	"beeline.io/beeline/internal/bpf"
)

// A way is a path from the client to the web servers, with what proves that it is taken.
type way struct {
	name    string
	world   *harness.World
	to      netip.AddrPort
	pods    []string   // the pods that answer
	sees    netip.Addr // the client, as the web servers see it
	passes  passage
	sockmap *sockmapBalancer // that forwards the bytes; nil: another way
	hook    bpf.EdgeHook     // at which Beeline balances; empty: nowhere
}

// The ways that the others are divided by.
const (
	wayOfDirect  = "direct, one server"
	wayOfSockmap = "sockmap"
)

// A passage is what passes node-a.
type passage int

const (
	passesNothing passage = iota
	passesRequests
	passesAll
)

// proofs is the number of requests that prove a way: both of two backends answer except with a probability of
// 2^-39.
const proofs = 40

// prove has the client ask who answers, with a new connection for each request.
func (w *way) prove(ctx context.Context) error {
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		return fmt.Errorf("count runs of programs: %w", err)
	}
	defer stats.Close()
	before, err := w.runs()
	if err != nil {
		return err
	}
	var pods []string
	for range proofs {
		_, text, err := web.Who(ctx, w.world.Host("client"), w.to)
		if err != nil {
			return err
		}
		pod, sees, _ := strings.Cut(text, " ")
		if sees != w.sees.String() {
			return fmt.Errorf("web server %s sees the client %s, want %s", pod, sees, w.sees)
		}
		if !slices.Contains(pods, pod) {
			pods = append(pods, pod)
		}
	}
	if slices.Sort(pods); !slices.Equal(pods, w.pods) {
		return fmt.Errorf("%s answers, want %s", strings.Join(pods, " "), strings.Join(w.pods, " "))
	}
	after, err := w.runs()
	if err != nil {
		return err
	}
	return w.proveHook(before, after)
}

// runs is how often the programs at node-a's eth0 have run, by hook.
func (w *way) runs() (map[bpf.EdgeHook]uint64, error) {
	runs := map[bpf.EdgeHook]uint64{}
	if w.hook == "" {
		return runs, nil
	}
	host := w.world.Host("node-a")
	device, err := harness.DeviceOf(host, "eth0")
	if err != nil {
		return nil, err
	}
	return runs, host.Do(func() error {
		return harness.ProgramsAt(w.world.Agents[0].BPFFS(), device.Index, func(hook bpf.EdgeHook, program *ebpf.Program) error {
			defer program.Close()
			stats, err := program.Stats()
			if err == nil {
				runs[hook] += stats.RunCount
			}
			return err
		})
	})
}

// proveHook checks that the way's hook handled the packets, and did not leave them to the next one. Each
// connection has at least a SYN, a request and a FIN.
func (w *way) proveHook(before, after map[bpf.EdgeHook]uint64) error {
	if w.hook == "" {
		return nil
	}
	if n := after[w.hook] - before[w.hook]; n < 3*proofs {
		return fmt.Errorf("the program at %s ran %d times in %d connections", w.hook, n, proofs)
	}
	if _, xdp := after[bpf.EdgeXDP]; xdp && w.hook != bpf.EdgeXDP {
		return errors.New("there is a program at XDP, too")
	}
	if n := after[bpf.EdgeIngress] - before[bpf.EdgeIngress]; w.hook == bpf.EdgeXDP && n >= proofs {
		return fmt.Errorf("XDP left %d packets to tc in %d connections", n, proofs)
	}
	return nil
}

// traffic is a way's counters.
type traffic struct {
	passed  uint64 // bytes that node-a has sent by eth0
	sockmap sockmapCounters
}

func (w *way) traffic() (t traffic, err error) {
	device, err := harness.DeviceOf(w.world.Host("fabric"), "node-a")
	if err != nil {
		return t, err
	}
	t.passed = device.Statistics.RxBytes
	if w.sockmap != nil {
		t.sockmap, err = w.sockmap.counters()
	}
	return t, err
}

// fewestBytes is the minimum of a request, with its TCP and IP headers.
const fewestBytes = 64

// proveTraffic checks that so many requests took the way: by the bytes that node-a has sent, which include the
// replies, or only the requests, or neither.
func (w *way) proveTraffic(before, after traffic, requests uint64) error {
	passed := after.passed - before.passed
	least, most := uint64(0), fewestBytes*requests
	switch w.passes {
	case passesRequests:
		least, most = fewestBytes*requests, web.AnswerLength*requests
	case passesAll:
		least, most = web.AnswerLength*requests, ^uint64(0)
	}
	if passed < least || passed >= most {
		return fmt.Errorf("node-a has sent %d bytes for %d requests, want at least %d and less than %d", passed, requests, least, most)
	}
	if w.sockmap == nil {
		return nil
	}
	if n := after.sockmap.Bytes - before.sockmap.Bytes; n < web.AnswerLength*requests {
		return fmt.Errorf("%d bytes went by the map in %d requests, want at least %d", n, requests, web.AnswerLength*requests)
	}
	// When wrk ends, replies to closed connections are in flight: at most one per connection.
	if n := after.sockmap.Lost - before.sockmap.Lost; n > web.Connections {
		return fmt.Errorf("the map lost %d segments in %d requests", n, requests)
	}
	return nil
}
