// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf/ringbuf"

	"beeline.io/beeline/internal/bpf/settable"
	"beeline.io/beeline/internal/conntrack/kernelct"
	"beeline.io/beeline/internal/node/flow"
	"beeline.io/beeline/internal/node/netdev"
	"beeline.io/beeline/internal/util/wakeup"
)

// FlowCacheConfig is what the flow cache is told.
type FlowCacheConfig struct {
	// Threshold is the number of packets of one direction after which it is a candidate.
	Threshold uint32
	// Refuses returns why a flow stays on the stack; empty: it need not.
	Refuses func(flow.Flow) string
	Log     *slog.Logger
}

// idleTime is how long a flow without packets stays in the cache. The kernel's conntrack decides how long it lives.
const idleTime = 60 * time.Second

// collectInterval is how often entries that are no longer used are deleted.
const collectInterval = time.Second

// FlowCache is the flow cache with the flows that it has refused. All methods may be called from any goroutine.
type FlowCache struct {
	config FlowCacheConfig
	tables *Tables
	kernel *kernelct.Table
	routes *routes

	mu      sync.Mutex
	cache   *cacheTable
	refused refusals
	ended   map[string]uint64 // flows that have left the cache, by the reason
	learned uint64
}

// NewFlowCache returns the flow cache in tables. wait returns when all programs that run at the call have ended.
func NewFlowCache(t *Tables, wait func() error, c FlowCacheConfig) (*FlowCache, error) {
	kernel, err := kernelct.Open()
	if err != nil {
		return nil, err
	}
	f := &FlowCache{
		config: c, tables: t, kernel: kernel, routes: newRoutes(), cache: newCacheTable(t, wait), refused: refusals{},
		ended: map[string]uint64{"closed": 0, "conntrack": 0, "route": 0, "changed": 0, "idle": 0},
	}
	control := f.cache.control()
	control.UdpStreamTimeout = udpStreamTimeout()
	control.Threshold = c.Threshold
	return f, nil
}

// defaultUDPStream is the kernel's default of nf_conntrack_udp_timeout_stream, in seconds.
const defaultUDPStream = 120

// udpStreamTimeout returns the timeout of UDP streams in the kernel's conntrack, in milliseconds.
func udpStreamTimeout() uint32 {
	text, err := os.ReadFile(netdev.SysctlRoot + "/netfilter/nf_conntrack_udp_timeout_stream")
	if seconds, wrong := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 22); err == nil && wrong == nil {
		return uint32(seconds) * 1000
	}
	return defaultUDPStream * 1000
}

// Run learns flows until ctx ends. Those in the cache stay there: the programs notice changes by themselves.
func (f *FlowCache) Run(ctx context.Context) error {
	reader, err := ringbuf.NewReader(f.tables.Candidates)
	if err != nil {
		return fmt.Errorf("read the offload candidates: %w", err)
	}
	defer reader.Close()
	stop := context.AfterFunc(ctx, func() { reader.Close() })
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer cancel()
	tasks.Go(func() { f.collectUntil(ctx) })
	var record ringbuf.Record
	for {
		if err := reader.ReadInto(&record); errors.Is(err, os.ErrClosed) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read the offload candidates: %w", err)
		}
		if len(record.RawSample) < int(unsafe.Sizeof(Candidate{})) {
			continue
		}
		candidate := *(*Candidate)(unsafe.Pointer(&record.RawSample[0]))
		f.consider(&candidate)
	}
}

func (f *FlowCache) collectUntil(ctx context.Context) {
	for wakeup.Sleep(ctx, collectInterval) {
		if err := f.Collect(); err != nil {
			f.config.Log.Error("the flow cache", "error", err)
		}
	}
}

// consider takes a candidate, or notes why not.
func (f *FlowCache) consider(c *Candidate) {
	one := flowOf(&c.Flow)
	reason := ""
	if c.Refusal != 0 {
		reason = refusalText(c.Refusal)
	} else {
		reason = f.config.Refuses(one)
	}
	if reason == "" {
		tunnel := c.Flow.Flags&flagTunnel != 0
		mtu, err := f.routes.mtu(&one, tunnel)
		if err != nil {
			reason = err.Error()
		}
		c.Flow.RouteMtu = mtu
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if reason == "" {
		reason = f.take(&c.Flow)
	}
	if reason != "" {
		f.refused.add(one, reason)
		return
	}
	delete(f.refused, one)
}

// take adds an entry, or replaces one that programs no longer use. It returns why not.
func (f *FlowCache) take(e *Entry) string {
	if old := f.cache.get(e.Key); old != nil {
		if f.cache.active(old) && old.To == e.To {
			return ""
		}
		if err := f.cache.remove([]Key{e.Key}, f.count); err != nil {
			return err.Error()
		}
	}
	if e.Epoch != f.cache.control().Epoch {
		return "" // seen before a change; its next packets count again
	}
	e.LastSeen = settable.Tick()
	// Before, because packets of the other direction may be invalid as soon as those of this one skip conntrack;
	// and afterwards, because a packet on the stack before the entry is in effect sets again what is cleared.
	if err := f.kernel.SetLiberal(tupleOf(&e.Key.Tuple)); err != nil {
		return err.Error()
	}
	if err := f.cache.add(e); err != nil {
		return err.Error()
	}
	if err := f.kernel.SetLiberal(tupleOf(&e.Key.Tuple)); err != nil {
		if removed := f.cache.remove([]Key{e.Key}, f.count); removed != nil {
			f.config.Log.Error("the flow cache", "error", removed)
		}
		return err.Error()
	}
	f.learned++
	return ""
}

// count counts a flow that leaves the cache.
func (f *FlowCache) count(e *Entry) {
	f.ended[f.endOf(e)]++
	if state(e) == stateRerouted && e.Mtu == 0 {
		f.refused.add(flowOf(e), "the stack routes it by what the flow cache does not see, such as a mark")
	}
}

func (f *FlowCache) endOf(e *Entry) string {
	switch state(e) {
	case stateClosed:
		return "closed"
	case stateUntracked:
		return "conntrack"
	case stateRerouted:
		return "route"
	}
	if e.Epoch != f.cache.control().Epoch {
		return "changed"
	}
	return "idle"
}

// Collect deletes entries that are no longer used.
func (f *FlowCache) Collect() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var keys []Key
	now, idle := settable.Tick(), int32(idleTime.Nanoseconds()>>20)
	f.cache.each(func(e *Entry) {
		if !f.cache.active(e) || int32(now-e.LastSeen) > idle {
			keys = append(keys, e.Key)
		}
	})
	f.refused.expire()
	return f.cache.remove(keys, f.count)
}

// withoutRoom is how many directions of flows stay on the stack because the flow cache is full.
func (f *FlowCache) withoutRoom() (n int) {
	if f == nil {
		return 0
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, why := range f.refused {
		if why.reason == errFull.Error() {
			n++
		}
	}
	return n
}

// Flush returns all flows to the stack at once. They are learned anew from packets that the stack forwards.
func (f *FlowCache) Flush() {
	f.mu.Lock()
	defer f.mu.Unlock()
	atomic.AddUint32(&f.cache.control().Epoch, 1)
	clear(f.refused)
}

// RoutesChanged is called when routes have changed; `unseen`: in a way that the programs do not notice, as one that
// sets an MTU, or that rules decide by.
func (f *FlowCache) RoutesChanged(unseen bool) error {
	f.routes.forget()
	if unseen {
		f.Flush()
		return nil
	}
	return f.returnTunnelled()
}

// returnTunnelled returns the flows to the stack whose outer header is known only from their route: the programs cannot
// look up such a route again.
func (f *FlowCache) returnTunnelled() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var keys []Key
	f.cache.each(func(e *Entry) {
		if e.Flags&flagTunnel != 0 {
			keys = append(keys, e.Key)
		}
	})
	return f.cache.remove(keys, func(e *Entry) { f.ended["route"]++ })
}

// Close frees what the flow cache needs of this process. The flows stay in it.
func (f *FlowCache) Close() { f.kernel.Close() }
