// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

const (
	familyInet   = unix.NFPROTO_INET
	familyIPv4   = unix.NFPROTO_IPV4
	familyNetdev = unix.NFPROTO_NETDEV
	familyBridge = unix.NFPROTO_BRIDGE
	familyIPv6   = unix.NFPROTO_IPV6
)

var familyNames = map[uint8]string{
	familyInet: "inet", familyIPv4: "ip", familyNetdev: "netdev", familyBridge: "bridge", familyIPv6: "ip6",
}

// Attributes and flags that golang.org/x/sys lacks (linux/netfilter/nf_tables.h).
const (
	nftaHookDevices    = 4
	nftaDevicePrefix   = 2
	nftTableDormant    = 1
	nftInetIngressHook = 5
	nftSetCatchAll     = 2
	nftaBitwiseOp      = 6
	nftMetaSecpath     = 25
	nftMetaIifkind     = 26
	nftMetaOifkind     = 27

	nftaSetElemExpiration = 5
)

// A ruleset is the rules of nftables that have been read.
type ruleset struct {
	client  *client // during a search
	changes changes
	bases   []base
	tables  map[tableKey]*nftTable
}

// An nftTable reads chains when they are needed: kube-proxy has one for each endpoint, which no packet between pods
// meets.
type nftTable struct {
	tableKey
	ruleset *ruleset
	chains  map[string]*nftChain
	sets    map[string]*nftSet
	// previous are chains that may have changed. Most of their rules have not, so they are not translated again.
	previous map[string]*nftChain
}

// An nftChain is the rules of a chain.
type nftChain struct {
	rules []rule
	// outdated: sets that rules read may have changed, or some rules are not translated yet.
	outdated bool
}

func (t *nftTable) title(part, chain string) string {
	return fmt.Sprintf("nftables %s in chain %s of table %s", part, chain, tableName(t.family, t.name))
}

// tableName names a table as nft does, such as "inet filter".
func tableName(family uint8, name string) string { return familyNames[family] + " " + name }

// readAll reads the base chains that packets between pods may meet, and forgets all others.
func (r *ruleset) readAll() error {
	before := r.tables
	r.tables, r.bases = map[tableKey]*nftTable{}, nil
	r.changes.forget()
	if err := r.readBases(); err != nil {
		return err
	}
	for key, t := range r.tables {
		if before[key] != nil {
			t.previous = before[key].chains
			maps.Copy(t.previous, before[key].previous)
		}
	}
	return nil
}

// readBases reads the base chains that packets between pods may meet.
func (r *ruleset) readBases() error {
	dormant, err := r.dormantTables()
	if err != nil {
		return err
	}
	chains, families, err := r.client.ask(query{message: unix.NFT_MSG_GETCHAIN, dump: true})
	if err != nil {
		return fmt.Errorf("list the chains of nftables: %w", err)
	}
	r.bases = nil
	for i, c := range chains {
		key := tableKey{families[i], c.text(unix.NFTA_CHAIN_TABLE)}
		r.changes.learnChain(key, c)
		b, ok := baseOf(key.family, c)
		if !ok || dormant[key] || key.isKubeProxy() {
			continue
		}
		if r.tables[key] == nil {
			r.tables[key] = &nftTable{tableKey: key, ruleset: r, chains: map[string]*nftChain{}, sets: map[string]*nftSet{}}
		}
		b.table = r.tables[key]
		r.bases = append(r.bases, b)
	}
	return nil
}

// refresh forgets what has changed.
func (r *ruleset) refresh(n named) error {
	for object, change := range n.chains {
		t := r.tables[object.tableKey]
		if t == nil || t.chains[object.name] == nil {
			continue
		}
		if rules, ok := change.apply(t.chains[object.name].rules); ok {
			t.chains[object.name] = &nftChain{rules: rules, outdated: true}
		} else {
			t.keep(object.name)
		}
	}
	for object := range n.sets {
		if t := r.tables[object.tableKey]; t != nil && t.sets[object.name] != nil {
			delete(t.sets, object.name)
			for _, c := range t.chains {
				c.outdated = true
			}
		}
	}
	if n.bases {
		return r.readBases()
	}
	return nil
}

// keep forgets the rules of a chain, but not their translations.
func (t *nftTable) keep(chain string) {
	if t.previous == nil {
		t.previous = map[string]*nftChain{}
	}
	t.previous[chain] = t.chains[chain]
	delete(t.chains, chain)
}

// settle frees what was kept of earlier rules, after a search.
func (r *ruleset) settle() {
	for _, t := range r.tables {
		t.previous = nil
	}
	_, next := r.expired(time.Time{})
	r.changes.expireAt(next)
}

type tableKey struct {
	family uint8
	name   string
}

// isKubeProxy: kube-proxy's rules in its nftables mode concern Services, and what ctstate INVALID matches.
func (k tableKey) isKubeProxy() bool {
	return k.name == "kube-proxy" && (k.family == familyIPv4 || k.family == familyIPv6)
}

func (r *ruleset) dormantTables() (map[tableKey]bool, error) {
	tables, families, err := r.client.ask(query{message: unix.NFT_MSG_GETTABLE, dump: true})
	if err != nil {
		return nil, fmt.Errorf("list the tables of nftables: %w", err)
	}
	dormant := map[tableKey]bool{}
	for i, t := range tables {
		if t.number(unix.NFTA_TABLE_FLAGS)&nftTableDormant != 0 {
			dormant[tableKey{families[i], t.text(unix.NFTA_TABLE_NAME)}] = true
		}
	}
	return dormant, nil
}

// hooks are the numbers of the kernel (NF_INET_*, NF_BR_*, NF_NETDEV_*).
var hooks = map[uint8]map[uint32]hook{
	familyInet:   {0: prerouting, 2: forward, 4: postrouting},
	familyIPv4:   {0: prerouting, 2: forward, 4: postrouting},
	familyIPv6:   {0: prerouting, 2: forward, 4: postrouting},
	familyBridge: {0: prerouting, 1: bridgeInput, 2: forward, 3: bridgeOutput, 4: postrouting},
	familyNetdev: {0: ingress, 1: egress},
}

// baseOf reports whether a chain is one that packets between pods may meet.
func baseOf(family uint8, c attributes) (base, bool) {
	at := c.nested(unix.NFTA_CHAIN_HOOK)
	number := at.number(unix.NFTA_HOOK_HOOKNUM)
	if family == familyInet && number == nftInetIngressHook {
		family, number = familyNetdev, 0
	}
	h, ok := hooks[family][number]
	if !c.has(unix.NFTA_CHAIN_HOOK) || !ok {
		return base{}, false
	}
	return base{
		family: family, chain: c.text(unix.NFTA_CHAIN_NAME), hook: h, priority: int32(at.number(unix.NFTA_HOOK_PRIORITY)),
		drop: c.has(unix.NFTA_CHAIN_POLICY) && c.number(unix.NFTA_CHAIN_POLICY) == 0, nat: c.text(unix.NFTA_CHAIN_TYPE) == "nat",
		devices: hookDevices(at),
	}, true
}

// hookDevices are the devices of a netdev chain: names, or with a star the beginnings of names.
func hookDevices(at attributes) (names []string) {
	if at.has(unix.NFTA_HOOK_DEV) {
		names = append(names, at.text(unix.NFTA_HOOK_DEV))
	}
	for _, a := range attributeList(at[nftaHookDevices]) {
		name := attributes{0: a.data}.text(0)
		if a.kind == nftaDevicePrefix {
			name += "*"
		}
		names = append(names, name)
	}
	return names
}

// rules implements table.
func (t *nftTable) rules(chain string) (all []rule, err error) {
	c := t.chains[chain]
	switch {
	case c == nil:
		all, err = t.readRules(chain)
	case c.outdated:
		all, err = t.translateAgain(c.rules)
	default:
		return c.rules, nil
	}
	if err == nil {
		t.chains[chain] = &nftChain{rules: all}
	}
	return all, err
}

// readRules reads the rules of a chain. Those of which the text has not changed are not translated again.
func (t *nftTable) readRules(chain string) (all []rule, err error) {
	t.ruleset.changes.know(objectKey{t.tableKey, chain, false})
	have := map[string]*rule{}
	if before := t.previous[chain]; before != nil {
		for i := range before.rules {
			have[before.rules[i].text] = &before.rules[i]
		}
	}
	q := query{message: unix.NFT_MSG_GETRULE, family: t.family, dump: true, names: map[int]string{
		unix.NFTA_RULE_TABLE: t.name, unix.NFTA_RULE_CHAIN: chain,
	}}
	err = t.ruleset.readDump(objectKey{t.tableKey, chain, false}, q, func() { all = nil }, func(_ uint8, body []byte) error {
		var r rule
		handle := uint64(0)
		for _, a := range attributeList(body) {
			switch a.kind {
			case unix.NFTA_RULE_EXPRESSIONS:
				if known := have[string(a.data)]; known != nil {
					r = *known
				} else {
					r.text = string(a.data)
				}
			case unix.NFTA_RULE_HANDLE:
				if len(a.data) == 8 {
					handle = binary.BigEndian.Uint64(a.data)
				}
			}
		}
		if r.handle != handle {
			r.handle, r.name = handle, nameOf(handle)
		}
		all = append(all, r)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read chain %s of table %s %s of nftables: %w", chain, familyNames[t.family], t.name, err)
	}
	return t.translateAgain(all)
}

// nameOf is the name of a rule with a handle.
func nameOf(handle uint64) string { return "handle " + strconv.FormatUint(handle, 10) }

// translateAgain translates the rules that have not been, or that read sets which have changed.
func (t *nftTable) translateAgain(rules []rule) ([]rule, error) {
	all := slices.Clone(rules)
	for i := range all {
		r := &all[i]
		current, err := t.isCurrent(r)
		if err == nil && !current {
			name, handle := r.name, r.handle
			*r, err = t.translate(r.text)
			r.name, r.handle = name, handle
		}
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// isCurrent reports whether a rule is translated, and with the sets as they are now.
func (t *nftTable) isCurrent(r *rule) (bool, error) {
	for _, s := range r.sets {
		now, err := t.set(s.name)
		if err != nil || now != s {
			return false, err
		}
	}
	return r.steps != nil, nil
}

// readDump dumps rules or elements of an object. A dump that was interrupted is whole unless the object itself has
// changed meanwhile. reset is called before each attempt.
func (r *ruleset) readDump(object objectKey, q query, reset func(), handle func(family uint8, body []byte) error) (err error) {
	for range askAttempts {
		reset()
		if err = r.client.each(q, handle); !errors.Is(err, errInterrupted) {
			break
		}
		if known, named := r.changes.has(object); known && !named {
			return nil
		}
	}
	return err
}

// An nftSet is a set or map. Its elements are ranges; those of a map of verdicts have one each.
type nftSet struct {
	name     string
	keySize  uint32 // in bytes
	elements []nftElement
	rest     *verdict  // of what is in no element; nil: such do not match
	readable bool      // the elements are what packets are compared with
	changes  bool      // packets add elements, or elements time out, without a change of the rules
	expires  time.Time // when the next element times out; zero: none does
}

type nftElement struct {
	keys    byteRange
	verdict verdict
}

func (t *nftTable) set(name string) (*nftSet, error) {
	if have := t.sets[name]; have != nil {
		return have, nil
	}
	t.ruleset.changes.know(objectKey{t.tableKey, name, true})
	names := map[int]string{unix.NFTA_SET_TABLE: t.name, unix.NFTA_SET_NAME: name}
	about, _, err := t.ruleset.client.ask(query{message: unix.NFT_MSG_GETSET, family: t.family, names: names})
	if err == nil && len(about) != 1 {
		err = fmt.Errorf("%d answers", len(about))
	}
	if err != nil {
		return nil, fmt.Errorf("read set %s of table %s %s of nftables: %w", name, familyNames[t.family], t.name, err)
	}
	s := &nftSet{name: name, keySize: about[0].number(unix.NFTA_SET_KEY_LEN)}
	flags := about[0].number(unix.NFTA_SET_FLAGS)
	var parts []attributes
	q := query{message: unix.NFT_MSG_GETSETELEM, family: t.family, dump: true, names: names}
	err = t.ruleset.readDump(objectKey{t.tableKey, name, true}, q, func() { parts = nil }, func(_ uint8, body []byte) error {
		parts = append(parts, parseAttributes(slices.Clone(body)))
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the elements of set %s of table %s %s of nftables: %w", name, familyNames[t.family], t.name, err)
	}
	s.add(parts, flags)
	t.sets[name] = s
	return s, nil
}

// add adds the elements of a dump. Those that packets add are not the ones that the next packets meet.
func (s *nftSet) add(parts []attributes, flags uint32) {
	s.changes = flags&(unix.NFT_SET_EVAL|unix.NFT_SET_TIMEOUT) != 0
	s.readable = flags&(unix.NFT_SET_EVAL|unix.NFT_SET_OBJECT) == 0
	keys := map[string]nftKey{}
	for _, p := range parts {
		for _, e := range attributeList(p[unix.NFTA_SET_ELEM_LIST_ELEMENTS]) {
			s.addElement(keys, parseAttributes(e.data))
		}
	}
	order := slices.Sorted(maps.Keys(keys))
	for i, key := range order {
		k, first := keys[key], []byte(key)
		last := first
		switch {
		case k.end && !k.begin:
			continue
		case flags&unix.NFT_SET_INTERVAL == 0:
		case i+1 < len(order):
			last = before([]byte(order[i+1]))
		default:
			last = slices.Repeat([]byte{0xff}, len(first))
		}
		s.elements = append(s.elements, nftElement{byteRange{first, last}, k.verdict})
	}
}

// An nftKey is a key of a set. That of an interval begins one, or ends the one before, or both.
type nftKey struct {
	begin, end bool
	verdict    verdict
}

func (s *nftSet) addElement(keys map[string]nftKey, e attributes) {
	flags := e.number(unix.NFTA_SET_ELEM_FLAGS)
	v := verdictOf(e.nested(unix.NFTA_SET_ELEM_DATA).nested(unix.NFTA_DATA_VERDICT))
	if left := e[nftaSetElemExpiration]; len(left) == 8 {
		s.expire(time.Duration(binary.BigEndian.Uint64(left)) * time.Millisecond)
	}
	if flags&nftSetCatchAll != 0 {
		s.rest = &v
		return
	}
	data := e.nested(unix.NFTA_SET_ELEM_KEY)[unix.NFTA_DATA_VALUE]
	key := string(data[:min(len(data), int(s.keySize))])
	k := keys[key]
	if flags&unix.NFT_SET_ELEM_INTERVAL_END != 0 {
		k.end = true
	} else {
		k.begin, k.verdict = true, v
	}
	keys[key] = k
}

// expireMargin is how late the kernel may be with an element that times out.
const expireMargin = 10 * time.Millisecond

func (s *nftSet) expire(left time.Duration) {
	if at := time.Now().Add(left + expireMargin); s.expires.IsZero() || at.Before(s.expires) {
		s.expires = at
	}
}

// expired returns the sets of which an element has timed out, and when the next one does in others; zero: never.
func (r *ruleset) expired(now time.Time) (sets []objectKey, next time.Time) {
	for key, t := range r.tables {
		for name, s := range t.sets {
			switch {
			case s.expires.IsZero() || !s.readable:
			case !now.Before(s.expires):
				sets = append(sets, objectKey{key, name, true})
			case next.IsZero() || s.expires.Before(next):
				next = s.expires
			}
		}
	}
	return sets, next
}

// before returns the value before one, which is not the first.
func before(b []byte) []byte {
	out := slices.Clone(b)
	for i := len(out) - 1; i >= 0; i-- {
		out[i]--
		if out[i] != 0xff {
			break
		}
	}
	return out
}
