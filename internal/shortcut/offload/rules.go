// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"fmt"
	"reflect"
	"slices"
	"sync"

	"beeline.io/beeline/internal/node"
	"beeline.io/beeline/internal/node/flow"
	"beeline.io/beeline/internal/node/netfilter"
	"beeline.io/beeline/internal/node/tcfilter"
	"beeline.io/beeline/internal/shortcut/offload/flowtable"
)

// ownTables are the tables of nftables that flow offload has.
var ownTables = []string{"inet " + flowtable.TableName, "inet " + flowtable.HardwareTableName, "inet " + flowtable.ProbeTableName}

// rules are the packet filters that flows of flow offload would bypass.
type rules struct {
	network *node.Network
	watcher *netfilter.Watcher
	tc      *tcfilter.Finder

	mu       sync.Mutex
	hardware bool     // flows are forwarded by the NICs, which bypass more
	devices  []Device // for which they were searched
	searched bool
	found    *netfilter.Findings
	atTC     []tcfilter.Found
	policies []node.XFRMPolicy
}

// newRules: foreign tells of a BPF program whether it is not Beeline's, and its name.
func newRules(network *node.Network, foreign func(program uint32) (name string, foreign bool)) (*rules, error) {
	w, err := netfilter.NewWatcher(ownTables...)
	if err != nil {
		return nil, err
	}
	return &rules{network: network, watcher: w, tc: tcfilter.New(foreign)}, nil
}

// compare searches the packet filters if they, XFRM policies or the devices have changed, and reports whether they
// have. It is called by one goroutine at a time, in the node's network namespace.
func (r *rules) compare(devices []Device) (changed bool, err error) {
	changed, err = r.watcher.Changed()
	if err != nil {
		return true, fmt.Errorf("packet filters: %w", err)
	}
	atTC, err := r.tcFilters(devices)
	if err != nil {
		return true, err
	}
	policies, err := forwardedPolicies(r.network)
	if err != nil {
		return true, err
	}
	if !changed && r.searched && slices.Equal(devices, r.devices) && reflect.DeepEqual(atTC, r.atTC) && slices.Equal(policies, r.policies) {
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
	r.devices, r.atTC, r.policies, r.searched, r.found = devices, atTC, policies, err == nil, found
	if err != nil {
		return true, fmt.Errorf("search packet filters: %w", err)
	}
	for _, at := range atTC {
		i := slices.IndexFunc(devices, func(d Device) bool { return d.Index == at.Device })
		found.All = append(found.All, tcFindings(at, devices[i].Name)...)
	}
	return true, nil
}

// tcFilters returns the filters of tc at the devices.
func (r *rules) tcFilters(devices []Device) ([]tcfilter.Found, error) {
	names := map[int]string{}
	for _, d := range devices {
		names[d.Index] = d.Name
	}
	queues, err := r.network.Queues()
	if err != nil {
		return nil, err
	}
	return r.tc.At(names, queues)
}

// tcFindings: packets of the flow cache skip what is at the ingress of a device, and pass what is at the egress.
func tcFindings(at tcfilter.Found, device string) (all []netfilter.Finding) {
	for _, what := range at.Ingress {
		all = append(all, netfilter.Ingress(at.Device, what+" of "+device))
	}
	for _, what := range at.Egress {
		all = append(all, netfilter.Egress(at.Device, what+" of "+device))
	}
	return all
}

// setHardware sets whether the NICs forward flows.
func (r *rules) setHardware(hardware bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hardware = hardware
}

// readRoutes reports whether rules decide by routes.
func (r *rules) readRoutes() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.found == nil || r.found.Routes
}

// refuses returns the rule that a flow would bypass, or why that is not known.
func (r *rules) refuses(f flow.Flow) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.searched {
		return "the packet filters have not been searched"
	}
	about := r.found.About
	if r.hardware {
		about = r.found.AboutInHardware
	}
	if about := about(f); about != nil {
		return "it would bypass " + about.What
	}
	if p := policyAbout(r.policies, f); p != nil {
		return "it would bypass " + p.String()
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
		if !f.Hardware || r.hardware {
			all = append(all, f.What)
		}
	}
	return append(all, describe(r.policies)...)
}

// legacy describes the chains of iptables-legacy that keep flows on the stack.
func (r *rules) legacy() (all []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.found == nil {
		return nil
	}
	for _, f := range r.found.All {
		if f.Legacy {
			all = append(all, f.What)
		}
	}
	return all
}
