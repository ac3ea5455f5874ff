// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"testing"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/internal/bpf/settable"
)

func newAffinity(t *testing.T, clients uint32, secret *ebpf.Map) *affinityTable {
	t.Helper()
	spec, err := LoadSock()
	must(t, err)
	table := spec.Maps[SockMapAffinity]
	table.MaxEntries = affinitySets(clients)
	m, err := ebpf.NewMap(table)
	must(t, err)
	t.Cleanup(func() { m.Close() })
	if secret == nil {
		secret, err = ebpf.NewMap(spec.Maps[SockMapTableSecret])
		must(t, err)
		t.Cleanup(func() { secret.Close() })
		must(t, settable.InitSecret(secret))
	}
	return newAffinityTable(m, secret)
}

// fillAffinity stores clients, a tenth of which have come again, and a tenth of which have expired.
func fillAffinity(t *testing.T, a *affinityTable, clients uint32) {
	t.Helper()
	now := settable.Tick()
	sets, err := a.Open()
	must(t, err)
	for n := range clients {
		e := AffinityEntry{Key: affinityKey(n), Backend: n + 1, Slot: n, LastUsed: n}
		owner, until := uint32(7)<<SockSetRankSET_RANK_BITS|uint32(SockSetRankSET_RANK_UNASSURED), now+1<<20
		switch n % 10 {
		case 0:
			owner = 7<<SockSetRankSET_RANK_BITS | uint32(SockSetRankSET_RANK_ASSURED)
		case 1:
			until = now
		}
		sets.Insert(&e, settable.Eviction{Expires: until, Owner: owner})
	}
	must(t, sets.Close())
}

func affinityKey(n uint32) AffinityKey {
	key := AffinityKey{Service: 7}
	key.Client.Bytes[14], key.Client.Bytes[15] = byte(n>>8), byte(n)
	return key
}

// After a change of the table's size its entries are where programs look for them. Of those that do not
// fit, entries of clients that have come once are dropped; expired ones take no room.
func TestAffinityIsCopied(t *testing.T) {
	const clients = 6000
	from := newAffinity(t, 2*clients, nil)
	fillAffinity(t, from, clients)
	for _, c := range []struct {
		size        uint32
		least, most int // of those that have come once
	}{
		{4 * clients, clients * 8 / 10, clients * 8 / 10},
		{clients / 5, clients / 20, clients / 5},
	} {
		to := newAffinity(t, c.size, from.Secret)
		must(t, followAffinity(Following{
			Old:  map[string]*ebpf.Map{SockMapAffinity: from.Rows},
			New:  map[string]*ebpf.Map{SockMapAffinity: to.Rows, SockMapTableSecret: to.Secret},
			Tick: settable.Tick(),
		}))
		again, once := 0, 0
		for n := range uint32(clients) {
			e, err := to.Get(affinityKey(n))
			must(t, err)
			switch {
			case e == nil:
			case e.Key != affinityKey(n) || e.Backend != n+1 || e.Slot != n || e.LastUsed != n:
				t.Fatalf("client %d has %+v", n, e)
			case n%10 == 0:
				again++
			case n%10 == 1:
				t.Errorf("client %d has been copied, though it had expired", n)
			default:
				once++
			}
		}
		if again != clients/10 || once < c.least || once > c.most {
			t.Errorf("a table for %d clients has %d that have come again, want %d, and %d that have come once, want %d to %d",
				c.size, again, clients/10, once, c.least, c.most)
		}
		live, err := to.Live()
		if int(live) != again+once || err != nil {
			t.Errorf("%d entries live, want %d; %v", live, again+once, err)
		}
	}
}

// The secret is random, and never changes while entries depend on it.
func TestTableSecretStays(t *testing.T) {
	a, b := newAffinity(t, 1, nil), newAffinity(t, 1, nil)
	first, err := settable.ReadSecret(a.Secret)
	must(t, err)
	other, err := settable.ReadSecret(b.Secret)
	must(t, err)
	if first == other || first.Multipliers[0] == first.Multipliers[1] {
		t.Errorf("secrets are %v and %v", first, other)
	}
	must(t, settable.InitSecret(a.Secret))
	if now, err := settable.ReadSecret(a.Secret); now != first || err != nil {
		t.Errorf("the secret was %v, and is %v; %v", first, now, err)
	}
}
