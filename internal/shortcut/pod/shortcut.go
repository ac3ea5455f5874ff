// SPDX-License-Identifier: Apache-2.0

// Package pod is the pod shortcut: packets between pods skip the IP stack of their node. It finds the pods of this node
// behind their devices, and keeps the programs attached there and at the devices that lead to other nodes
// (bpf/pod/shortcut.h).
package pod

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/conntrack/kernelct"
	"beeline.io/beeline/internal/node"
	"beeline.io/beeline/internal/node/netdev"
	"beeline.io/beeline/internal/node/tcfilter"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/util/wakeup"
)

// Config is the operator's configuration.
type Config struct {
	Network *node.Network // that of the node
	// Devices are names or shell patterns of devices of pods; empty: all.
	Devices []string
	// IgnoreFilters keeps the shortcut where it bypasses packet filters.
	IgnoreFilters bool
	// Lease is how long after its begin a search for filters counts.
	Lease time.Duration
	Log   *slog.Logger
}

// Datapath is what the shortcut needs of package bpf.
type Datapath interface {
	Enabled(component string) bool
	SetDevices(component string, devices ...int) error
	Pods() bpf.Hash[bpf.Address, Row]
	Devices() bpf.Hash[uint32, DeviceRow]
	Links() bpf.Hash[uint32, uint32]
	Unknown() bpf.Hash[bpf.Address, uint32]
	Bridges() bpf.Hash[uint32, uint32]
	Leases() bpf.Hash[uint32, LeaseRow]
	TrackFlows(ends map[netip.Addr]bool) ([]kernelct.Flow, error)
	UntrackFlows(flows []kernelct.Flow) error
	HandedFlows() ([]kernelct.Flow, error)
	WaitForReaders() error
	ForeignProgram(id uint32) (name string, foreign bool)
}

// filterFinder is what the shortcut needs of a finder.
type filterFinder interface {
	find(surroundings) ([]filter, error)
	follow() error
	wait(ctx context.Context) error
}

// Shortcut keeps the programs attached and the tables complete. All methods may be called from any goroutine.
type Shortcut struct {
	config   Config
	datapath Datapath
	read     func() (*network, error)
	filters  filterFinder
	changed  wakeup.Signal // devices, routes, neighbours or pod networks
	due      wakeup.Signal // schedule has changed
	lease    lease

	reading   sync.Mutex // held while the network is read, before writing
	searching sync.Mutex // held while filters are searched, before writing

	writing sync.Mutex    // held while the tables are written, before mu. With many flows that takes long
	tracked []trackedFlow // flows of withheld pods that may return

	mu       sync.Mutex
	ready    bool
	networks []netip.Prefix // of pods
	at       map[netip.Addr]place
	excess   map[int]int   // addresses that are not in at because their device has too many
	around   *surroundings // as last read
	searched *search       // the last search of filters; nil: none yet
	schedule schedule
	status   api.Pods
	failure  error // of the last reading or writing
}

// newShortcut returns a shortcut. Start attaches it.
func newShortcut(d Datapath, c Config) *Shortcut {
	return &Shortcut{
		config: c, datapath: d, read: func() (*network, error) { return readNetwork(c.Network) },
		filters: newFinder(c.Network, d.ForeignProgram), changed: wakeup.NewSignal(), due: wakeup.NewSignal(),
		at: map[netip.Addr]place{}, schedule: newSchedule(),
	}
}

// SetNetworks sets the pod networks.
func (s *Shortcut) SetNetworks(networks []netip.Prefix) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(s.networks, networks) {
		s.networks = slices.Clone(networks)
		s.changed.Send()
	}
}

// Start attaches the programs; from now on they follow the devices.
func (s *Shortcut) Start() {
	s.mu.Lock()
	s.ready = true
	s.mu.Unlock()
	if s.recall() {
		time.Sleep(recallTime)
	}
	s.Reconcile()
	if err := s.adopt(); err != nil {
		s.config.Log.Warn("flows that an earlier agent has handed to conntrack stay on the stack", "error", err)
	}
	s.searchFilters()
}

// Changes of the network are taken over settleTime after the first one, so that several of them need one read; later
// if a read takes long, as with many routes or neighbours. auditInterval is when filters are searched again: the
// kernel does not notify of all their changes.
//
// recallTime is how long the start waits for the answers of pods that an earlier agent knew.
const (
	recallTime    = 100 * time.Millisecond
	settleTime    = 20 * time.Millisecond
	readShare     = 20 // reads take at most 1/readShare of the time
	auditInterval = 5 * time.Second
	retries       = 2 // after an error
)

// Run follows the devices, routes, neighbours and packet filters until ctx ends. The programs stay attached.
func (s *Shortcut) Run(ctx context.Context) error {
	var loops sync.WaitGroup
	defer loops.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.config.Network.Notify(s.changed, node.Devices|node.Addresses|node.Routes|node.Neighbours|node.ForwardingEntries|node.RPFilters|node.Rules)
	for _, loop := range []func(context.Context){s.follow, s.followFilters, s.followUnknown, s.noteChanges} {
		loops.Go(func() { loop(ctx) })
	}
	return s.watchRules(ctx)
}

// noteChanges has filters searched when others than nftables have changed, or devices, such as by programs of XDP.
func (s *Shortcut) noteChanges(ctx context.Context) {
	filters, devices := wakeup.NewSignal(), wakeup.NewSignal()
	s.config.Network.Notify(filters, node.XFRM|node.Rules) // rules may read marks
	s.config.Network.NotifyIf(filters, node.Queues, tcfilter.Concerns)
	s.config.Network.Notify(devices, node.Devices)
	for {
		select {
		case <-ctx.Done():
			return
		case <-filters:
			s.filtersChanged()
		case <-devices: // pods may cause such
			s.podsChanged()
		}
	}
}

// follow reads the network when it has changed, and every auditInterval.
func (s *Shortcut) follow(ctx context.Context) {
	audit := time.NewTicker(auditInterval)
	defer audit.Stop()
	took := time.Duration(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-audit.C:
			s.config.Network.Forget()
		case <-s.changed:
			if !wakeup.Sleep(ctx, max(settleTime, readShare*took)) {
				return
			}
		}
		begin := time.Now()
		s.Reconcile()
		took = time.Since(begin)
	}
}

// Reconcile reads the network, attaches the programs and writes the tables until they are as they should be. Pods are
// added when packet filters have been searched for them.
func (s *Shortcut) Reconcile() {
	s.reading.Lock()
	defer s.reading.Unlock()
	err := s.reconcile()
	for range retries {
		if err == nil {
			break
		}
		s.config.Network.Forget() // a device may have gone while its entries were written
		err = s.reconcile()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.record(err)
}

// record notes the result of reading or writing. An error is logged once.
func (s *Shortcut) record(err error) {
	if err != nil && (s.failure == nil || s.failure.Error() != err.Error()) {
		condition.PodShortcutFailed.Log(s.config.Log, "the pod shortcut", "error", err)
	}
	s.failure = err
}

func (s *Shortcut) reconcile() error {
	n, err := s.read()
	if err != nil {
		return err
	}
	s.mu.Lock()
	networks := slices.Clone(s.networks)
	s.mu.Unlock()
	found := n.find(networks, s.config.Devices)
	if !s.surround(n, networks, found) {
		return nil
	}
	return s.apply()
}

// surround notes the network as it was read, and reports whether the shortcut is ready.
func (s *Shortcut) surround(n *network, networks []netip.Prefix, found map[netip.Addr]place) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ready {
		return false
	}
	around := newSurroundings(n, networks, s.remember(n, found))
	around.unknown = around.ports(s.config.Devices)
	s.around = &around
	if s.searched.isOutdated(s.around) {
		s.schedule.podsChanged(time.Now())
		s.due.Send()
	}
	return true
}

// apply writes the tables as the network was last read, with the filters that were last found: pods that the last
// search did not cover wait on the stack. It writes an entry after its program is attached, and deletes it before that
// is detached, so that both directions of a flow take the shortcut or none does. Nobody waits for it who notes a change
// or decides when to search.
func (s *Shortcut) apply() error {
	s.writing.Lock()
	defer s.writing.Unlock()
	rows := s.wanted()
	if rows == nil {
		return nil
	}
	err := s.write(rows)
	s.mu.Lock()
	s.status = rows.status
	s.mu.Unlock()
	return err
}

// rows are what the tables are to have, the devices of each component of the shortcut, by name, and what the status
// says of these tables.
type rows struct {
	network *network
	pods    map[bpf.Address]Row
	devices map[uint32]DeviceRow
	places  map[string][]int
	status  api.Pods
}

// wanted returns the rows; nil: they are not known yet.
func (s *Shortcut) wanted() *rows {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.around == nil || s.searched == nil {
		return nil
	}
	n, found := s.around.network, slices.Concat(s.searched.found, s.around.reversePaths(), s.around.vrfs(), s.around.routeMarks(bpf.RouteLookupsTakeMarks()))
	if s.schedule.held && !s.config.IgnoreFilters {
		found = append(found, filter{what: "packet filters that change faster than they can be searched"})
	}
	at, status := s.choose(found)
	uplinks := slices.DeleteFunc(slices.Clone(s.around.uplinks), func(l netdev.Device) bool {
		return !s.config.IgnoreFilters && !s.searched.hasUplink(s.around, l)
	})
	pods, devices := n.rows(at, uplinks)
	if len(pods) == 0 {
		devices = map[uint32]DeviceRow{}
	}
	for _, l := range s.around.unknown {
		if l := n.device(l); devices[uint32(l.Index)].Role == 0 {
			devices[uint32(l.Index)] = DeviceRow{Mac: n.gateway(l), Role: RolePods}
		}
	}
	return &rows{n, pods, devices, n.places(devices, found), status}
}

// places are the devices of each component of the shortcut, by name.
func (n *network) places(devices map[uint32]DeviceRow, found []filter) map[string][]int {
	at := map[string][]int{NetkitComponentName: n.peers(devices, found)}
	for index := range devices {
		component := ComponentName
		if l := n.device(int(index)); l.L3 {
			component = L3ComponentName
		}
		at[component] = append(at[component], int(index))
	}
	return at
}

// peers are the devices that can have the program at the peer hook of netkit. With a program there the device's policy
// no longer counts, so it must be to forward. Programs of others stay alone: which of two comes first matters there.
func (n *network) peers(devices map[uint32]DeviceRow, found []filter) (peers []int) {
	for index := range devices {
		l := n.device(int(index))
		if l.Kind == "netkit" && !l.Netkit.PeerBlackhole && !slices.ContainsFunc(found, func(f filter) bool { return f.atPeer && f.device == l.Index }) {
			peers = append(peers, l.Index)
		}
	}
	return peers
}

// remember adds the pods behind a bridge that the kernel has forgotten: it learns them by packets, and packets on the
// shortcut do not pass it. They are kept until their device, or another one, says otherwise. Addresses beyond the limit
// of a device are removed.
func (s *Shortcut) remember(n *network, found map[netip.Addr]place) map[netip.Addr]place {
	gone := map[netip.Addr]bool{}
	for _, b := range n.neighbours {
		gone[b.Address] = gone[b.Address] || b.Gone
	}
	links := n.podLinks(s.config.Devices)
	for addr, p := range s.at {
		_, known := found[addr]
		l := links[p.device]
		if known || gone[addr] || l == nil || l.Master == 0 || n.deviceTo(addr) != l.Master {
			continue
		}
		if port := n.ports[node.BridgeMAC{Bridge: l.Master, MAC: p.mac}]; port == 0 || port == p.device {
			found[addr] = p
		}
	}
	s.excess = limit(found, s.at)
	s.at = maps.Clone(found)
	return found
}

// rows are the entries of the tables.
func (n *network) rows(at map[netip.Addr]place, uplinks []netdev.Device) (map[bpf.Address]Row, map[uint32]DeviceRow) {
	pods, devices := map[bpf.Address]Row{}, map[uint32]DeviceRow{}
	for addr, p := range at {
		l := n.device(p.device)
		gateway := n.gateway(l)
		pods[bpf.AddressFrom(addr)] = Row{Device: uint32(p.device), Mtu: n.mtuTo(addr, l), Mac: p.mac, Gateway: gateway, L3: asByte(l.Netkit.L3)}
		devices[uint32(p.device)] = DeviceRow{Mac: gateway, Role: RolePods, RpFilter: n.rpFilter(l)}
	}
	for _, l := range uplinks {
		devices[uint32(l.Index)] = DeviceRow{Mac: l.MAC(), Role: RoleNodes, RpFilter: n.rpFilters[l.Index]}
	}
	return pods, devices
}

// rpFilter is the value for what arrives by a device of pods, or is routed from its bridge.
func (n *network) rpFilter(l netdev.Device) uint8 {
	if n.device(l.Master).IsBridge() {
		return n.rpFilters[l.Master]
	}
	return n.rpFilters[l.Index]
}

// bridges are the bridges above devices.
func (n *network) bridges(devices map[uint32]uint32) map[uint32]uint32 {
	above := map[uint32]uint32{}
	for index := range devices {
		if l := n.device(int(index)); n.device(l.Master).IsBridge() {
			above[index] = uint32(l.Master)
		}
	}
	return above
}

func asByte(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

// write makes the tables and the attached programs as they should be.
func (s *Shortcut) write(wanted *rows) error {
	pods, devices, places := wanted.pods, wanted.devices, wanted.places
	leaving, err := s.withhold(wanted)
	if err != nil {
		return err
	}
	if err := bpf.DeleteUnwanted(s.datapath.Pods(), pods); err != nil {
		return err
	}
	links := map[uint32]uint32{}
	for _, p := range pods {
		links[p.Device] = p.Device
	}
	if err := bpf.DeleteUnwanted(s.datapath.Links(), links); err != nil {
		return err
	}
	if err := bpf.DeleteUnwanted(s.datapath.Devices(), devices); err != nil {
		return err
	}
	bridges := wanted.network.bridges(links)
	if err := bpf.DeleteUnwanted(s.datapath.Bridges(), bridges); err != nil {
		return err
	}
	for _, component := range []string{ComponentName, L3ComponentName, NetkitComponentName} {
		slices.Sort(places[component])
		if !s.datapath.Enabled(component) {
			continue
		}
		if err := s.datapath.SetDevices(component, places[component]...); err != nil {
			return fmt.Errorf("attach the programs: %w", err)
		}
	}
	if err := bpf.Publish(s.datapath.Bridges(), bridges); err != nil {
		return err
	}
	if err := bpf.Publish(s.datapath.Devices(), devices); err != nil {
		return err
	}
	if err := bpf.Publish(s.datapath.Links(), links); err != nil {
		return err
	}
	if err := bpf.Publish(s.datapath.Pods(), pods); err != nil {
		return err
	}
	if leaving != nil { // flows that began until the tables were written
		if err := s.track(leaving); err != nil {
			return err
		}
	}
	return s.untrack(pods)
}
