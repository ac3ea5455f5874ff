// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"fmt"
	"time"
)

// An event happens to the node while its clients go on.
type event struct {
	name string
	do   func(*world) error
	// may is which clients may lose requests during the event; nil: none.
	may func(*client) bool
	// beside is the kind of hostile packets that arrive during the event in the short form; "" none.
	beside string
	// drawn: not in the short form, because a shorter test has the rule.
	drawn bool
}

// events are in the order of the short form. docs/operate/life.md is about each.
var events = []event{
	{"nothing", func(*world) error { time.Sleep(3 * time.Second); return nil }, nil, "segments in clients' names", false},
	{"restart", (*world).restart, nil, "SYNs of forged sources", false},
	{"kills", (*world).kills, nil, "datagrams of forged sources", false},
	{"stop", (*world).stop, nil, "ICMP", false},
	{"out of memory", (*world).outOfMemory, nil, "", false},
	{"other clocks", (*world).otherClocks, nil, "fragments", true},
	{"source away", (*world).sourceAway, nil, "forged encapsulation", false},
	{"full tables", (*world).fullTables, nil, "SYNs of forged sources", false},
	{"pins removed", (*world).unpin, nil, "damaged packets", false},
	{"bpffs unmounted", (*world).unmount, nil, "", false},
	{"device made again", (*world).remakeDevice, behindEth1, "", false},
	{"upgrades", (*world).upgrades, nil, "segments in clients' names", false},
	{"reboot", (*world).reboot, everybody, "", false},
}

// longFlood is long enough that a flood of SYNs fills the table of unreplied flows, whose size has a minimum.
const longFlood = 15 * time.Second

// behindEth1 are clients who are cut off while the device is gone.
func behindEth1(c *client) bool { return c.host == "client2" }

func everybody(*client) bool { return true }

// happen runs an event, with hostile packets beside it, and waits until the node is as it should be.
func (w *world) happen(e event, beside *hostile) {
	w.t.Helper()
	begin := time.Now()
	before := w.counts()
	dropped := w.drops()
	shut := func() {}
	if e.may != nil {
		shut = w.open(e.may)
	}
	flooded := make(chan error, 1)
	name := e.name
	if beside == nil {
		flooded <- nil
	} else {
		name += ", with " + beside.name
		go func() { flooded <- w.flood.run(*beside, length(2*time.Second, longFlood)) }()
	}
	if err := e.do(w); err != nil {
		w.t.Fatalf("%s: %v", name, err)
	}
	if err := <-flooded; err != nil && e.may == nil {
		w.t.Fatalf("%s: %v", name, err)
	}
	w.settle(name)
	shut()
	time.Sleep(300 * time.Millisecond)
	after := w.counts()
	overflowed, lost := after.overflowed-before.overflowed, after.lost-before.lost
	if overflowed > 0 || lost > 0 {
		w.logf("dropped during %s: %s", name, w.drops().since(dropped))
	}
	w.logf("%-60s %6.1f s: %6d requests, %d lost as declared, %d in full queues, %d lost", name, time.Since(begin).Seconds(),
		after.tried-before.tried, after.spent-before.spent, overflowed, lost)
}

func (w *world) logf(format string, args ...any) {
	fmt.Printf("%s  "+format+"\n", append([]any{time.Now().Format(time.TimeOnly)}, args...)...)
}
