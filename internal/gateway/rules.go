// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"fmt"
	"slices"
	"sync"

	"beeline.io/beeline/internal/gateway/flow"
	"beeline.io/beeline/internal/netfilter"
)

// Table is the gateway's own table of nftables.
const Table = "inet beeline_gateway"

// rules are the packet filters that flows of the gateway would bypass.
type rules struct {
	watcher *netfilter.Watcher

	mu       sync.Mutex
	devices  []Device // for which they were searched
	searched bool
	found    *netfilter.Findings
}

func newRules() (*rules, error) {
	w, err := netfilter.NewWatcher(Table)
	if err != nil {
		return nil, err
	}
	return &rules{watcher: w}, nil
}

// compare searches the packet filters if they or the devices have changed, and reports whether they have. It is called
// by one goroutine at a time, in the node's network namespace.
func (r *rules) compare(devices []Device) (changed bool, err error) {
	changed, err = r.watcher.Changed()
	if err != nil {
		return true, fmt.Errorf("packet filters: %w", err)
	}
	if !changed && r.searched && slices.Equal(devices, r.devices) {
		return false, nil
	}
	subject := make([]netfilter.Device, len(devices))
	for i, d := range devices {
		subject[i] = netfilter.Device{Index: d.Index, Name: d.Name, Bridge: d.Bridge}
		if d.Master != "" {
			subject[i].Master = &netfilter.Master{Index: d.MasterIndex, Name: d.Master, Bridge: d.MasterBridge}
		}
	}
	found, err := r.watcher.Find(subject)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.devices, r.searched, r.found = devices, err == nil, found
	if err != nil {
		return true, fmt.Errorf("search packet filters: %w", err)
	}
	return true, nil
}

// refuses returns the rule that a flow would bypass, or why that is not known.
func (r *rules) refuses(f flow.Flow) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.searched {
		return "the packet filters have not been searched"
	}
	if about := r.found.About(f); about != nil {
		return "it would bypass " + about.What
	}
	return ""
}

// findings describe the rules that keep flows on the stack.
func (r *rules) findings() (all []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.found == nil {
		return nil
	}
	for _, f := range r.found.All {
		if !f.Hardware {
			all = append(all, f.What)
		}
	}
	return all
}
