// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"beeline.io/beeline/internal/node"
	"beeline.io/beeline/internal/node/netdev"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/internal/util/wakeup"
)

// slowFinder finds filters when the test lets it.
type slowFinder struct {
	begun  chan surroundings
	finish chan []filter
	events wakeup.Signal
	ended  chan struct{} // the test
}

func (f *slowFinder) find(s surroundings) (found []filter, err error) {
	select {
	case f.begun <- s:
	case <-f.ended:
	}
	select {
	case found = <-f.finish:
	case <-f.ended:
	}
	return found, nil
}

func (f *slowFinder) follow() error { return nil }

func (f *slowFinder) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-f.events:
		return nil
	}
}

// bench is a shortcut with a slow finder, and the network of a test.
type bench struct {
	*Shortcut
	t       *testing.T
	tables  *fakeDatapath
	finder  *slowFinder
	mu      sync.Mutex
	network *network
}

func newBench(t *testing.T) *bench {
	b := &bench{t: t, tables: newFakeDatapath(), finder: &slowFinder{make(chan surroundings), make(chan []filter), wakeup.NewSignal(), make(chan struct{})}}
	b.Shortcut = newShortcut(b.tables, Config{Network: new(node.Network), Lease: time.Minute, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	b.filters = b.finder
	b.read = func() (*network, error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.network, nil
	}
	b.SetNetworks([]netip.Prefix{netip.MustParsePrefix("10.10.0.0/16")})
	return b
}

// set has pods 10.10.1.N with routes to devices of the same number, and these that lead to other nodes.
func (b *bench) set(pods []int, uplinks ...int) {
	n := &network{}
	for _, i := range pods {
		n.devices = append(n.devices, netdev.Device{Index: i, Name: fmt.Sprintf("veth%d", i), Kind: "veth", Up: true, Ethernet: true, PeerElsewhere: true})
		n.routes = append(n.routes, route{to: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 10, 1, byte(i)}), 32), device: i, direct: true})
	}
	for _, i := range uplinks {
		n.devices = append(n.devices, netdev.Device{Index: i, Name: fmt.Sprintf("eth%d", i), Up: true, Ethernet: true})
		n.routes = append(n.routes, route{to: netip.MustParsePrefix("10.10.0.0/16"), device: i})
	}
	n.prepare()
	b.mu.Lock()
	b.network = n
	b.mu.Unlock()
}

// start starts the shortcut: a first search finds nothing.
func (b *bench) start() {
	go func() {
		<-b.finder.begun
		b.finder.finish <- nil
	}()
	b.Start()
}

// run runs the loop that searches filters until the test ends.
func (b *bench) run() {
	ctx, cancel := context.WithCancel(context.Background())
	var loops sync.WaitGroup
	loops.Go(func() { b.followFilters(ctx) })
	loops.Go(func() { _ = b.watchRules(ctx) })
	b.t.Cleanup(func() {
		cancel()
		close(b.finder.ended)
		loops.Wait()
	})
}

// searched lets one search begin and end.
func (b *bench) searched(found ...filter) {
	b.t.Helper()
	b.begun()
	b.finder.finish <- found
}

func (b *bench) begun() surroundings {
	b.t.Helper()
	select {
	case s := <-b.finder.begun:
		return s
	case <-time.After(10 * time.Second):
		b.t.Fatal("no search")
	}
	return surroundings{}
}

// want waits until the tables have these pods and uplinks.
func (b *bench) want(when string, pods []int, uplinks ...int) {
	b.t.Helper()
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		b.Shortcut.writing.Lock()
		var gotPods, gotUplinks []int
		for _, p := range b.tables.pods {
			gotPods = append(gotPods, int(p.Device))
		}
		for index, d := range b.tables.devices {
			if d.Role == RoleNodes {
				gotUplinks = append(gotUplinks, int(index))
			}
		}
		b.Shortcut.writing.Unlock()
		slices.Sort(gotPods)
		slices.Sort(gotUplinks)
		if slices.Equal(gotPods, pods) && slices.Equal(gotUplinks, uplinks) {
			return
		}
		if time.Since(begin) > 10*time.Second {
			b.t.Fatalf("%s: the tables have pods at the devices %v and uplinks %v, want %v and %v", when, gotPods, gotUplinks, pods, uplinks)
		}
	}
}

// A new pod or uplink waits on the stack until a search has covered it; others do not wait for it.
func TestNewPodsWait(t *testing.T) {
	b := newBench(t)
	b.set([]int{1, 2}, 10)
	b.start()
	b.want("at the start", []int{1, 2}, 10)
	b.set([]int{1, 2, 3}, 10, 11)
	b.Reconcile()
	b.want("before a search", []int{1, 2}, 10)
	if d := b.Status().Devices[2]; d.Name != "veth3" || len(d.WaitingAddresses) != 1 || len(d.PodAddresses) != 0 {
		t.Errorf("the status of a pod that waits: %+v", d)
	}
	for _, c := range b.Conditions() {
		t.Errorf("a pod that waits has the condition %v", c)
	}
	b.run()
	b.begun()
	b.set([]int{1, 2, 3, 4}, 10, 11)
	b.Reconcile()
	b.finder.finish <- []filter{{device: 2, what: "drop"}}
	b.want("after a search that began before the last pod", []int{1, 3}, 10, 11)
	b.searched(filter{device: 2, what: "drop"})
	b.want("after a search of all", []int{1, 3, 4}, 10, 11)
}

// An address that has moved to another port of its bridge is new there: those that were there before it stay.
func TestAddressLimitOfMovedPods(t *testing.T) {
	moved := netip.MustParseAddr("10.10.0.1") // before the others in order
	before := map[netip.Addr]place{moved: {device: 2, learned: true}}
	at := map[netip.Addr]place{moved: {device: 3, learned: true}}
	for i := range mostLearned {
		a := netip.AddrFrom4([4]byte{10, 10, 1, byte(i)})
		before[a], at[a] = place{device: 3, learned: true}, place{device: 3, learned: true}
	}
	if excess := limit(at, before); !maps.Equal(excess, map[int]int{3: 1}) {
		t.Errorf("addresses too many by device: %v, want one of device 3", excess)
	}
	if _, ok := at[moved]; ok || len(at) != mostLearned {
		t.Errorf("%d addresses have places, the one that has moved among them: %v; want the %d that were there before", len(at), ok, mostLearned)
	}
}

// A pod whose device is another one, or has another bridge, waits like a new pod.
func TestMovedPodsWait(t *testing.T) {
	b := newBench(t)
	b.set([]int{1, 2})
	b.start()
	for what, change := range map[string]func(n *network){
		"its device has another name":           func(n *network) { n.devices[0].Name = "renamed" },
		"its device has another bridge":         func(n *network) { n.devices[0].Master = 2 },
		"the route to it leads to the device 2": func(n *network) { n.routes[0].device = 2 },
	} {
		b.set([]int{1, 2})
		b.Reconcile()
		b.want("as before", []int{1, 2})
		change(b.network)
		b.Reconcile()
		b.want("the pod of device 1 is to wait for a search: "+what, []int{2})
	}
}

// A device behind another bridge of the same name is another one: the bridge was made again, without its filters.
func TestBridgeMadeAgain(t *testing.T) {
	behind := func(bridge int) *network {
		n := &network{devices: []netdev.Device{{Index: 1, Name: "veth1", Master: bridge}, {Index: bridge, Name: "cni0", Kind: "bridge"}}}
		n.prepare()
		return n
	}
	if !sameDevice(behind(5), behind(5), 1) || sameDevice(behind(5), behind(6), 1) {
		t.Errorf("veth1 counts as the same device, with the filters that were found: behind the same bridge: %v, behind another bridge of the name cni0: %v; want true, false",
			sameDevice(behind(5), behind(5), 1), sameDevice(behind(5), behind(6), 1))
	}
}

// If a search has not seen a change of filters in time, all pods are withheld until it has.
func TestLateSearch(t *testing.T) {
	b := newBench(t)
	b.set([]int{1, 2}, 10)
	b.start()
	b.run()
	b.searched() // what changed before the events were followed
	b.want("at the start", []int{1, 2}, 10)
	begin := time.Now()
	b.finder.events.Send()
	b.begun()
	b.want("while the search lasts", nil)
	if took := time.Since(begin); took < lateAfter {
		t.Errorf("pods were withheld after %v, want %v", took, lateAfter)
	}
	if !has(b.Conditions(), condition.PodShortcutWithheld) {
		t.Error("no condition says that the pods take the stack")
	}
	b.finder.finish <- []filter{{device: 2, what: "drop"}}
	b.want("when it has ended", []int{1}, 10)
}

// A rule that drops invalid packets alone withholds no pod. A condition names it while a pod that it concerns is on the
// shortcut.
func TestRulesForInvalidPackets(t *testing.T) {
	b := newBench(t)
	b.set([]int{1, 2, 3}, 10)
	b.start()
	b.run()
	b.searched() // what changed before the events were followed
	invalid, other := filter{device: 2, what: "drop invalid", invalid: true}, filter{device: 2, what: "drop"}
	for _, step := range []struct {
		when   string
		found  []filter
		pods   []int
		passes string
	}{
		{"with a rule", []filter{invalid}, []int{1, 2, 3}, "packets of 1 pod address that conntrack finds invalid pass on the shortcut: drop invalid"},
		{"with another filter of the pod", []filter{invalid, other}, []int{1, 3}, ""},
		{"with a rule of two pods", []filter{invalid, {device: 3, what: "drop invalid", invalid: true}}, []int{1, 2, 3}, "packets of 2 pod addresses that conntrack finds invalid pass on the shortcut: drop invalid"},
		{"without", nil, []int{1, 2, 3}, ""},
	} {
		b.finder.events.Send()
		b.searched(step.found...)
		for begin := time.Now(); passes(b.Conditions()) != step.passes; time.Sleep(time.Millisecond) {
			if time.Since(begin) > 10*time.Second {
				t.Fatalf("%s: the condition says %q, want %q", step.when, passes(b.Conditions()), step.passes)
			}
		}
		b.want(step.when, step.pods, 10)
	}
}

// passes is what the condition about invalid packets says.
func passes(all condition.List) (message string) {
	for _, c := range all {
		if c.Code == condition.PodPassesInvalid.Code {
			message += c.Message
		}
	}
	return message
}

// While conntrack gets the flows of a pod that leaves the shortcut, which may be tens of thousands, changes are noted
// and searched, and the status is there.
func TestSearchesWhileFlowsAreTracked(t *testing.T) {
	b := newBench(t)
	b.set([]int{1, 2})
	b.start()
	tracking, tracked := make(chan bool), make(chan bool)
	b.tables.track = func() {
		tracking <- true
		<-tracked
	}
	b.set([]int{1})
	ended := make(chan bool)
	go func() {
		b.Reconcile()
		close(ended)
	}()
	<-tracking
	b.run()
	b.filtersChanged()
	b.begun()
	b.Status()
	b.Conditions()
	close(tracked)
	<-tracking // the flows that began meanwhile
	b.finder.finish <- nil
	<-ended
	b.want("when the flows are tracked", []int{1})
}

// Of addresses that a bridge has learned behind one device only so many have the shortcut, those first that were there
// before. Routes are not limited.
func TestAddressLimit(t *testing.T) {
	addr := func(third, last int) netip.Addr {
		return netip.AddrFrom4([4]byte{10, 10, byte(third), byte(last)})
	}
	b := newBench(t)
	n := &network{ports: map[node.BridgeMAC]int{{Bridge: 1, MAC: [6]byte{2}}: 2, {Bridge: 1, MAC: [6]byte{3}}: 3}}
	n.devices = []netdev.Device{{Index: 1, Name: "cni0", Kind: "bridge", Up: true}}
	for i := 2; i <= 4; i++ {
		n.devices = append(n.devices, netdev.Device{Index: i, Name: fmt.Sprintf("veth%d", i), Kind: "veth", Up: true, Ethernet: true, PeerElsewhere: true, Master: 1})
	}
	n.routes = []route{{to: netip.MustParsePrefix("10.10.0.0/16"), device: 1, direct: true}}
	learn := func(device byte, a netip.Addr) {
		n.neighbours = append(n.neighbours, node.Neighbour{Device: 1, Address: a, MAC: [6]byte{device}})
	}
	learn(2, addr(250, 1))
	learn(3, addr(250, 2))
	for i := range 2 * mostLearned {
		n.routes = append(n.routes, route{to: netip.PrefixFrom(addr(200, i), 32), device: 4, direct: true})
	}
	n.prepare()
	b.network = n
	b.start()
	for i := range 200 {
		learn(2, addr(1, i))
	}
	b.Reconcile()
	if got := len(b.at); got != mostLearned+1+2*mostLearned {
		t.Errorf("%d addresses, want %d of the device with too many, one and %d of the others", got, mostLearned, 2*mostLearned)
	}
	if _, ok := b.at[addr(250, 1)]; !ok {
		t.Error("the address that was there before has no place")
	}
	first := maps.Clone(b.at)
	for i := range 200 {
		learn(2, addr(0, i)) // before the others in order
	}
	b.Reconcile()
	if !maps.Equal(first, b.at) {
		t.Error("addresses that came later have taken the places of those before")
	}
	b.run()
	b.searched()
	b.want("after a search", slices.Concat(slices.Repeat([]int{2}, mostLearned), []int{3}, slices.Repeat([]int{4}, 2*mostLearned)))
	for _, d := range b.Status().Devices {
		if want := map[string]int{"veth2": 401 - mostLearned}[d.Name]; d.ExcessAddresses != want {
			t.Errorf("%s has %d addresses too many, want %d", d.Name, d.ExcessAddresses, want)
		}
	}
	for _, c := range b.Conditions() {
		if c.Code != condition.PodAddressLimit.Code || c.Object != "veth2" {
			t.Errorf("condition %v", c)
		}
	}
	if !has(b.Conditions(), condition.PodAddressLimit) {
		t.Error("no condition names the device")
	}
}
