// SPDX-License-Identifier: Apache-2.0

package flowtable

import (
	"math"
	"net/netip"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
)

// Names of Beeline's tables, of the family inet. The second one has the flowtable of the hardware: a device can be in
// one flowtable of a table only. The third one exists while devices are tried.
const (
	TableName         = "beeline_offload"
	HardwareTableName = "beeline_offload_hardware"
	ProbeTableName    = "beeline_offload_probe"
	flowtableName     = "flows"
)

// Names of sets that are read or changed later.
const (
	validSet4, validSet6 = "valid4", "valid6"
	usedSet4, usedSet6   = "used4", "used6"
	directSet            = "direct"
	chosenSet            = "chosen"
)

const (
	// readyTime is how long a direction of a flow waits for a packet of the other one.
	readyTime = 5 * time.Second
	// chosenTime is how long a flow that Choose names waits for packets.
	chosenTime = time.Minute
	// dynamicSize is how many flows, or next hops, a set has that packets fill.
	dynamicSize = 1 << 16
)

var (
	nextHop4Type = nftables.MustConcatSetType(nftables.TypeIFIndex, nftables.TypeIPAddr)
	nextHop6Type = nftables.MustConcatSetType(nftables.TypeIFIndex, nftables.TypeIP6Addr)
)

// A ruleset is the content of one table.
type ruleset struct {
	config   Config
	devices  []string // of the flowtable
	indexes  []int    // of the devices by which packets enter and leave the stack
	hops     hops
	hardware bool
}

// A writer adds a ruleset to a batch. The first error is kept.
type writer struct {
	*nftables.Conn
	*ruleset
	table  *nftables.Table
	chains map[string]*nftables.Chain
	err    error
}

// tableOf is one of Beeline's tables.
func tableOf(hardware bool) *nftables.Table {
	name := TableName
	if hardware {
		name = HardwareTableName
	}
	return &nftables.Table{Family: nftables.TableFamilyINet, Name: name}
}

// replace adds to a batch what creates a table, whether or not there is an earlier one.
func (r *ruleset) replace(c *nftables.Conn) error {
	w := &writer{Conn: c, ruleset: r, table: tableOf(r.hardware), chains: map[string]*nftables.Chain{}}
	remove(c, w.table)
	w.Conn.AddTable(w.table)
	w.AddFlowtable(flowtable(w.table, r.devices, r.hardware))
	w.addChains()
	w.addRules()
	return w.err
}

// remove deletes a table that may not exist.
func remove(c *nftables.Conn, table *nftables.Table) {
	c.AddTable(table)
	c.DelTable(table)
}

func flowtable(table *nftables.Table, devices []string, hardware bool) *nftables.Flowtable {
	flags := nftables.FlowtableFlagsCounter
	if hardware {
		flags |= nftables.FlowtableFlagsHWOffload
	}
	return &nftables.Flowtable{Table: table, Name: flowtableName, Devices: devices, Flags: flags}
}

// addChains creates the chains before the rules that refer to them. The first has the last place in the hook: packets
// that another chain drops do not get there. The one of the hardware is before that of the software: who is first
// takes the flow.
func (w *writer) addChains() {
	priority := nftables.ChainPriority(math.MaxInt32)
	if w.hardware {
		priority--
	}
	accept := nftables.ChainPolicyAccept
	w.chains["forward"] = w.AddChain(&nftables.Chain{
		Table: w.table, Name: "forward", Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: &priority, Policy: &accept,
	})
	for _, name := range []string{"networks", "ports", "nexthops", "ready"} {
		w.chains[name] = w.AddChain(&nftables.Chain{Table: w.table, Name: name})
	}
}

func (w *writer) add(chain string, parts ...[]expr.Any) {
	w.AddRule(&nftables.Rule{Table: w.table, Chain: w.chains[chain], Exprs: match(parts...)})
}

func (w *writer) addRules() {
	w.addForward()
	w.addTaken()
	w.addNextHops()
	w.addReady()
}

// addForward leaves all flows that are not to be taken, or not yet, to the stack.
func (w *writer) addForward() {
	devices := w.set("devices", nftables.TypeIFIndex, indexElements(w.indexes))
	var numbers []nftables.SetElement
	for _, p := range w.config.protocols() {
		numbers = append(numbers, nftables.SetElement{Key: []byte{p}})
	}
	protocols := w.set("protocols", nftables.TypeInetProto, numbers)
	enough := packets(2 * uint64(max(0, w.config.Threshold)))
	w.forEachAddress("exclude_networks", w.config.ExcludeNetworks, func(excluded []expr.Any) { w.add("forward", excluded, leave()) })
	w.forEachPort("exclude_ports", w.config.ExcludePorts, func(excluded []expr.Any) { w.add("forward", excluded, leave()) })
	candidate := match(established(), between(devices), metaIn(expr.MetaKeyL4PROTO, protocols), enough)
	if w.config.OnlyChosen {
		chosen := w.timeoutSet(chosenSet, nftables.TypeMark, chosenTime, false)
		candidate = match(candidate, flowID(), in(chosen, 1))
	}
	w.add("forward", candidate, goTo(w.chains["networks"]))
}

// addTaken goes on with the flows that Networks and Ports name.
func (w *writer) addTaken() {
	toPorts, toNextHops := goTo(w.chains["ports"]), goTo(w.chains["nexthops"])
	w.forEachAddress("networks", w.config.Networks, func(named []expr.Any) { w.add("networks", named, toPorts) })
	if len(w.config.Networks) == 0 {
		w.add("networks", toPorts)
	}
	w.forEachPort("ports", w.config.Ports, func(named []expr.Any) { w.add("ports", named, toNextHops) })
	if len(w.config.Ports) == 0 {
		w.add("ports", toNextHops)
	}
}

// addNextHops goes on with packets whose next hop is valid, or that need none.
func (w *writer) addNextHops() {
	direct := w.set(directSet, nftables.TypeIFIndex, indexElements(w.hops.direct))
	w.add("nexthops", metaIn(expr.MetaKeyOIF, direct), goTo(w.chains["ready"]))
	for _, f := range []struct {
		number      byte
		key         expr.RtKey
		kind        nftables.SetDatatype
		valid, used string
		elements    []nftables.SetElement
	}{
		{unix.NFPROTO_IPV4, expr.RtNexthop4, nextHop4Type, validSet4, usedSet4, w.hops.elements(false)},
		{unix.NFPROTO_IPV6, expr.RtNexthop6, nextHop6Type, validSet6, usedSet6, w.hops.elements(true)},
	} {
		valid := w.set(f.valid, f.kind, f.elements)
		used := w.timeoutSet(f.used, f.kind, 0, true)
		w.add("nexthops", family(f.number), nextHop(f.key), in(valid, register1), update(used, register1, 0), goTo(w.chains["ready"]))
	}
}

// addReady takes a flow when packets of both directions, with valid next hops, have met the rules. Each next hop is
// the one that the stack has chosen for a translated packet.
func (w *writer) addReady() {
	var ready [2]*nftables.Set
	for d, name := range []string{"ready_original", "ready_reply"} {
		ready[d] = w.timeoutSet(name, nftables.TypeMark, readyTime, true)
	}
	for d, other := range []int{reply, original} {
		w.add("ready", direction(byte(d)), flowID(), update(ready[d], 1, readyTime), in(ready[other], 1), offload(flowtableName))
	}
}

// forEachAddress calls f with what matches flows with an address in the networks, of any direction and place.
func (w *writer) forEachAddress(name string, networks []netip.Prefix, f func([]expr.Any)) {
	for _, of := range []struct {
		number byte
		suffix string
		kind   nftables.SetDatatype
	}{{unix.NFPROTO_IPV4, "4", nftables.TypeIPAddr}, {unix.NFPROTO_IPV6, "6", nftables.TypeIP6Addr}} {
		all := spans(networks, of.number == unix.NFPROTO_IPV6)
		if len(all) == 0 {
			continue
		}
		set := w.intervals(name+of.suffix, of.kind, all)
		eachEnd(expr.CtKeySRC, expr.CtKeyDST, set, func(in []expr.Any) { f(match(family(of.number), in)) })
	}
}

func (w *writer) forEachPort(name string, ports []bpf.PortRange, f func([]expr.Any)) {
	if all := portSpans(ports); len(all) > 0 {
		eachEnd(expr.CtKeyPROTOSRC, expr.CtKeyPROTODST, w.intervals(name, nftables.TypeInetService, all), f)
	}
}

func eachEnd(source, destination expr.CtKey, set *nftables.Set, f func([]expr.Any)) {
	for _, key := range []expr.CtKey{source, destination} {
		for _, d := range []uint32{original, reply} {
			f(ctIn(key, d, set))
		}
	}
}
