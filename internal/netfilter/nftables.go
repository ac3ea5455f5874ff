// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

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
)

// An nftTable reads chains when they are needed: kube-proxy has one for each endpoint, which no packet between pods
// meets.
type nftTable struct {
	family uint8
	name   string
	chains map[string][]rule
	sets   map[string]*nftSet
}

func (t *nftTable) title(part, chain string) string {
	return fmt.Sprintf("nftables %s in chain %s of table %s", part, chain, tableName(t.family, t.name))
}

// tableName names a table as nft does, such as "inet filter".
func tableName(family uint8, name string) string { return familyNames[family] + " " + name }

// readNFTables returns the base chains that packets between pods may meet.
func readNFTables() ([]base, error) {
	dormant, err := dormantTables()
	if err != nil {
		return nil, err
	}
	chains, families, err := query{message: unix.NFT_MSG_GETCHAIN, dump: true}.send()
	if err != nil {
		return nil, fmt.Errorf("list the chains of nftables: %w", err)
	}
	tables := map[tableKey]*nftTable{}
	var bases []base
	for i, c := range chains {
		key := tableKey{families[i], c.text(unix.NFTA_CHAIN_TABLE)}
		b, ok := baseOf(key.family, c)
		if !ok || dormant[key] || key.isKubeProxy() {
			continue
		}
		if tables[key] == nil {
			tables[key] = &nftTable{key.family, key.name, map[string][]rule{}, map[string]*nftSet{}}
		}
		b.table = tables[key]
		bases = append(bases, b)
	}
	return bases, nil
}

type tableKey struct {
	family uint8
	name   string
}

// isKubeProxy: kube-proxy's rules in its nftables mode concern Services, and what ctstate INVALID matches.
func (k tableKey) isKubeProxy() bool {
	return k.name == "kube-proxy" && (k.family == familyIPv4 || k.family == familyIPv6)
}

func dormantTables() (map[tableKey]bool, error) {
	tables, families, err := query{message: unix.NFT_MSG_GETTABLE, dump: true}.send()
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
func (t *nftTable) rules(chain string) ([]rule, error) {
	if have, ok := t.chains[chain]; ok {
		return have, nil
	}
	list, _, err := query{message: unix.NFT_MSG_GETRULE, family: t.family, dump: true, names: map[int]string{
		unix.NFTA_RULE_TABLE: t.name, unix.NFTA_RULE_CHAIN: chain,
	}}.send()
	if err != nil {
		return nil, fmt.Errorf("read chain %s of table %s %s of nftables: %w", chain, familyNames[t.family], t.name, err)
	}
	rules := []rule{}
	for _, r := range list {
		steps, err := t.translate(attributeList(r[unix.NFTA_RULE_EXPRESSIONS]))
		if err != nil {
			return nil, err
		}
		if handle := r[unix.NFTA_RULE_HANDLE]; len(handle) == 8 {
			steps.name = fmt.Sprintf("handle %d", binary.BigEndian.Uint64(handle))
		}
		rules = append(rules, steps)
	}
	t.chains[chain] = rules
	return rules, nil
}

// An nftSet is a set or map. Its elements are ranges; those of a map of verdicts have one each.
type nftSet struct {
	keySize  uint32 // in bytes
	elements []nftElement
	rest     *verdict // of what is in no element; nil: such do not match
	readable bool     // the elements are what packets are compared with
	changes  bool     // packets add elements, or elements time out, without a change of the rules
}

type nftElement struct {
	keys    byteRange
	verdict verdict
}

func (t *nftTable) set(name string) (*nftSet, error) {
	if have := t.sets[name]; have != nil {
		return have, nil
	}
	names := map[int]string{unix.NFTA_SET_TABLE: t.name, unix.NFTA_SET_NAME: name}
	about, _, err := query{message: unix.NFT_MSG_GETSET, family: t.family, names: names}.send()
	if err == nil && len(about) != 1 {
		err = fmt.Errorf("%d answers", len(about))
	}
	if err != nil {
		return nil, fmt.Errorf("read set %s of table %s %s of nftables: %w", name, familyNames[t.family], t.name, err)
	}
	s := &nftSet{keySize: about[0].number(unix.NFTA_SET_KEY_LEN)}
	flags := about[0].number(unix.NFTA_SET_FLAGS)
	parts, _, err := query{message: unix.NFT_MSG_GETSETELEM, family: t.family, dump: true, names: names}.send()
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
