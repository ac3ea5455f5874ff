// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// changes follows what changes in nf_tables. It is used by the goroutine that waits and the one that searches.
type changes struct {
	mu     sync.Mutex
	events *events // nil: they are not followed, or the kernel has no nf_tables
	named  named   // since drain
	// relevant: something has changed that was read.
	relevant bool
	// known are the chains and sets that were read.
	known map[objectKey]bool
	// chains are the names of chains: an event with another name for a handle renames the chain.
	chains map[chainHandle]string
	// bases are the chains at hooks.
	bases map[objectKey]bool
	// expiry is when an element of a set times out.
	expiry *time.Timer
}

// objectKey is a chain or a set. Both may have the same name.
type objectKey struct {
	tableKey
	name  string
	isSet bool
}

type chainHandle struct {
	tableKey
	handle uint64
}

// named is what events have named. Of known objects alone, and at most mostNamed.
type named struct {
	generation uint32 // after the last event; 0: none
	all, bases bool
	chains     map[objectKey]*chainChange
	sets       map[objectKey]bool
}

// mostNamed is how many objects are read one by one.
const mostNamed = 1 << 14

func (n *named) empty() bool {
	return !n.all && !n.bases && len(n.chains) == 0 && len(n.sets) == 0
}

func (n *named) addSet(object objectKey) {
	if n.sets == nil {
		n.sets = map[objectKey]bool{}
	}
	n.sets[object] = true
	n.all = n.all || len(n.sets) > mostNamed
}

func (n *named) addChain(object objectKey) *chainChange {
	if n.chains == nil {
		n.chains = map[objectKey]*chainChange{}
	}
	c := n.chains[object]
	if c == nil {
		c = &chainChange{}
		n.chains[object] = c
		n.all = n.all || len(n.chains) > mostNamed
	}
	return c
}

// merge adds what came after.
func (n *named) merge(after named) {
	if after.generation != 0 {
		n.generation = after.generation
	}
	n.all, n.bases = n.all || after.all, n.bases || after.bases
	for object, c := range after.chains {
		n.addChain(object).add(c.reread, c.edits...)
	}
	for object := range after.sets {
		n.addSet(object)
	}
}

// Follow has the kernel report changes of nftables to Wait, so that Find reads only what has changed. The caller is in
// the network namespace of Find, and calls it once, before Wait.
func (f *Finder) Follow() error {
	e, err := newEvents()
	if err != nil {
		return fmt.Errorf("watch the rules of nftables: %w", err)
	}
	c := &f.nft.changes
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events, c.named.all = e, true
	return nil
}

// Wait waits until rules have changed so that Find may have another result, or ctx ends. It may run beside Find.
func (f *Finder) Wait(ctx context.Context) error {
	c := &f.nft.changes
	if c.events == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	defer context.AfterFunc(ctx, c.events.interrupt)()
	for {
		if err := c.events.arm(); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if c.tookRelevant() {
			return nil
		}
		lost, err := c.events.wait(c.add)
		if err != nil {
			return err
		}
		if lost {
			c.lose()
		}
	}
}

func (c *changes) tookRelevant() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer func() { c.relevant = false }()
	return c.relevant
}

// drain takes what has arrived, and adds it to what is to be read.
func (c *changes) drain(to *named) error {
	followed, err := c.take()
	if err != nil {
		return fmt.Errorf("watch the rules of nftables: %w", err)
	}
	if !followed {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	to.merge(c.named)
	c.named = named{}
	return nil
}

// take adds what has arrived, if changes are followed.
func (c *changes) take() (followed bool, err error) {
	c.mu.Lock()
	e := c.events
	c.mu.Unlock()
	if e == nil {
		return false, nil
	}
	lost, err := e.take(c.add)
	if lost || err != nil {
		c.lose()
	}
	return true, err
}

// lose: events were lost, so anything may have changed.
func (c *changes) lose() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.named.all, c.relevant = true, true
}

// expireAt: an element of a set that was read times out then; zero: none does.
func (c *changes) expireAt(next time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.expiry != nil {
		c.expiry.Stop()
	}
	if c.expiry = nil; c.events == nil || next.IsZero() {
		return
	}
	c.expiry = time.AfterFunc(time.Until(next), func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.relevant = true
		c.events.interrupt()
	})
}

// know: changes of a chain or set matter from now on. It is called before it is read.
func (c *changes) know(object objectKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known == nil {
		c.known = map[objectKey]bool{}
	}
	c.known[object] = true
}

// forget: everything is read again.
func (c *changes) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known, c.chains, c.bases = nil, map[chainHandle]string{}, map[objectKey]bool{}
}

// has reports whether changes are followed, and whether one of them is of a chain or set.
func (c *changes) has(object objectKey) (known, named bool) {
	if followed, _ := c.take(); !followed {
		return false, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return true, c.named.all || c.named.chains[object] != nil || c.named.sets[object]
}

// learnChain notes a chain of a dump. The event that renames it may arrive later.
func (c *changes) learnChain(table tableKey, a attributes) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.events == nil {
		return
	}
	if c.isRenamed(table, a) {
		c.named.all, c.relevant = true, true
	}
	if a.has(unix.NFTA_CHAIN_HOOK) {
		c.bases[objectKey{table, a.text(unix.NFTA_CHAIN_NAME), false}] = true
	}
}

// isRenamed notes the name of a chain, and reports whether it had another one.
func (c *changes) isRenamed(table tableKey, a attributes) bool {
	if len(a[unix.NFTA_CHAIN_HANDLE]) != 8 || c.chains == nil {
		return false
	}
	key, name := chainHandle{table, binary.BigEndian.Uint64(a[unix.NFTA_CHAIN_HANDLE])}, a.text(unix.NFTA_CHAIN_NAME)
	before, known := c.chains[key]
	c.chains[key] = name
	return known && before != name
}

// add notes what events name.
func (c *changes) add(messages []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !eachEvent(messages, c.event) {
		c.named.all, c.relevant = true, true
	}
}

func (c *changes) event(what uint8, flags uint16, body []byte) {
	if len(body) < nl.SizeofNfgenmsg {
		c.named.all, c.relevant = true, true
		return
	}
	a := parseAttributes(body[nl.SizeofNfgenmsg:])
	if what == unix.NFT_MSG_NEWGEN {
		c.named.generation = a.number(unix.NFTA_GEN_ID)
		return
	}
	table := tableKey{body[0], a.text(unix.NFTA_TABLE_NAME)} // the same attribute in all events
	if table.isKubeProxy() {
		return
	}
	switch what {
	case unix.NFT_MSG_NEWTABLE, unix.NFT_MSG_DELTABLE:
		c.named.all, c.relevant = true, true
	case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN:
		c.chainEvent(what, table, a)
	case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
		c.ruleEvent(what, flags, objectKey{table, a.text(unix.NFTA_RULE_CHAIN), false}, a)
	case unix.NFT_MSG_NEWSET, unix.NFT_MSG_DELSET:
		object := objectKey{table, a.text(unix.NFTA_SET_NAME), true}
		c.nameSet(object)
		if what == unix.NFT_MSG_DELSET {
			delete(c.known, object)
		}
	case unix.NFT_MSG_NEWSETELEM, unix.NFT_MSG_DELSETELEM:
		c.nameSet(objectKey{table, a.text(unix.NFTA_SET_ELEM_LIST_SET), true})
	case unix.NFT_MSG_NEWOBJ, unix.NFT_MSG_DELOBJ, unix.NFT_MSG_NEWFLOWTABLE, unix.NFT_MSG_DELFLOWTABLE:
	default:
		c.named.all, c.relevant = true, true
	}
}

// chainEvent: a chain at a hook may be new, and so may its policy be. Events of chains that are deleted do not say that
// they are at a hook (since Linux 6.4). No event reports the rules that call a chain which gets another name.
func (c *changes) chainEvent(what uint8, table tableKey, a attributes) {
	object := objectKey{table, a.text(unix.NFTA_CHAIN_NAME), false}
	if what == unix.NFT_MSG_NEWCHAIN && c.isRenamed(table, a) {
		c.named.all, c.relevant = true, true
	}
	if a.has(unix.NFTA_CHAIN_HOOK) || c.bases[object] {
		c.named.bases, c.relevant = true, true
	}
	if what != unix.NFT_MSG_DELCHAIN {
		return
	}
	if c.known[object] {
		c.named.addChain(object).add(true)
		c.relevant = true
	}
	delete(c.known, object)
	delete(c.bases, object)
	if len(a[unix.NFTA_CHAIN_HANDLE]) == 8 {
		delete(c.chains, chainHandle{table, binary.BigEndian.Uint64(a[unix.NFTA_CHAIN_HANDLE])})
	}
}

// nameSet notes a set, unless it was not read.
func (c *changes) nameSet(object objectKey) {
	if c.known[object] {
		c.named.addSet(object)
		c.relevant = true
	}
}

// ruleEvent: a chain that was read has another rule, or one less.
func (c *changes) ruleEvent(what uint8, flags uint16, chain objectKey, a attributes) {
	if !c.known[chain] {
		return
	}
	c.relevant = true
	change := c.named.addChain(chain)
	e := edit{removed: what == unix.NFT_MSG_DELRULE, last: flags&unix.NLM_F_APPEND != 0}
	if len(a[unix.NFTA_RULE_HANDLE]) != 8 {
		change.add(true)
		return
	}
	e.handle = binary.BigEndian.Uint64(a[unix.NFTA_RULE_HANDLE])
	if !change.reread && !e.removed {
		e.text = string(a[unix.NFTA_RULE_EXPRESSIONS])
		if position := a[unix.NFTA_RULE_POSITION]; len(position) == 8 {
			e.after = binary.BigEndian.Uint64(position)
		}
	}
	change.add(false, e)
}
