// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"
	"unsafe"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/bpf/settable"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/tables/jet"
	"beeline.io/beeline/test/shared"
)

// sharedInputs is the number of random inputs to compare the functions on.
const sharedInputs = 500

// TestSharedWithC: what both the programs and the agent compute is equal in C and in Go, on random inputs.
// The C runs in the kernel.
func TestSharedWithC(t *testing.T) {
	r, p := shared.Random(t), shared.Load(t)
	must(t, settable.InitSecret(p.Maps[shared.SharedMapTableSecret]))
	var secret settable.Secret
	must(t, p.Maps[shared.SharedMapTableSecret].Lookup(uint32(0), &secret))
	for range sharedInputs {
		c := randomCall(r)
		tuple := *(*bpf.Tuple)(unsafe.Pointer(&c.Tuple))
		affinity := *(*bpf.AffinityKey)(unsafe.Pointer(&c.Affinity))
		key := bpf.OffloadOffloadKey{Device: c.Now, Tunnel: c.Sets}
		key.Tuple = *(*bpf.OffloadTuple)(unsafe.Pointer(&c.Tuple))
		p.Run(&c)
		sum, hash := settable.KeySum(&secret, &tuple), bpf.TupleHash(&tuple)
		for _, same := range []struct {
			what      string
			inC, inGo uint64
		}{
			{"tuple_hash", uint64(c.TupleHash), uint64(hash)},
			{"set_sum of a tuple", c.TupleSum, sum},
			{"set_sum of a client", c.AffinitySum, settable.KeySum(&secret, &affinity)},
			{"set_first", uint64(c.First), uint64(settable.First(sum, c.Sets))},
			{"set_second", uint64(c.Second), uint64(settable.Second(sum, c.Sets))},
			{"set_tag", uint64(c.Tag), uint64(settable.Tag(hash))},
			{"eviction_expired", uint64(c.Expired), number(settable.Expired(c.Mark.Expires, c.Now))},
			{"eviction_rank", uint64(c.Rank), uint64(bpf.Rank(c.Mark.Owner))},
			{"offload_sum", c.OffloadSum, key.Sum(&secret)},
			{"set_pick", uint64(c.Pick), pickOf(&c)},
			{"chosen_slot", uint64(c.Slot), uint64(jet.Slot(hash, int(c.Slots)))},
		} {
			if same.inC != same.inGo {
				t.Fatalf("%s for %s > %s, %d sets, %d slots: C computes %#x, Go %#x", same.what, tuple.From(), tuple.To(), c.Sets, c.Slots, same.inC, same.inGo)
			}
		}
	}
}

// TestRTTBuckets: the bounds that are exported are those that the programs count by.
func TestRTTBuckets(t *testing.T) {
	p := shared.Load(t)
	bucketOf := func(time time.Duration) int {
		c := shared.Call{Now: uint32(time.Microseconds()), Sets: 1, Slots: 1}
		p.Run(&c)
		return int(c.RttBucket)
	}
	for bucket := range bpf.RTTBuckets {
		if at := bucketOf(bpf.RTTBound(bucket) - time.Microsecond); at != bucket {
			t.Errorf("the time before the bound %v of bucket %d is in bucket %d", bpf.RTTBound(bucket), bucket, at)
		}
		if at := bucketOf(bpf.RTTBound(bucket)); at != min(bucket+1, bpf.RTTBuckets-1) {
			t.Errorf("the bound %v of bucket %d is in bucket %d", bpf.RTTBound(bucket), bucket, at)
		}
	}
	for time, want := range map[time.Duration]int{0: 0, 15 * time.Microsecond: 0, time.Second: bpf.RTTBuckets - 1, time.Hour: bpf.RTTBuckets - 1} {
		if at := bucketOf(time); at != want {
			t.Errorf("%v is in bucket %d, want %d", time, at, want)
		}
	}
	var s bpf.ConnectionStats
	s.Rtt[4], s.Rtt[20], s.Rtt[bpf.RTTBuckets-1] = 50, 49, 1
	for q, want := range map[float64]time.Duration{0.5: bpf.RTTBound(4), 0.51: bpf.RTTBound(20), 0.99: bpf.RTTBound(20), 1: bpf.RTTBound(bpf.RTTBuckets - 2)} {
		if got := s.RTTQuantile(q); got != want {
			t.Errorf("quantile %v is %v, want %v", q, got, want)
		}
	}
}

// TestTablesReadByC: what the agent writes for a frontend is what the programs look up: its row by the key,
// its bits in the prefilter and among the untracked frontends, and the port that bind() refuses. For
// another address they find nothing.
func TestTablesReadByC(t *testing.T) {
	r, p := shared.Random(t), shared.Load(t)
	must(t, p.Maps[shared.SharedMapTableSecret].Put(uint32(0), &settable.Secret{}))
	tables := &bpf.Tables{FrontendRows: rows{p, t}}
	for range sharedInputs {
		c := randomCall(r)
		tuple := *(*bpf.Tuple)(unsafe.Pointer(&c.Tuple))
		to := tuple.To()
		f := service.Frontend{Kind: service.NodePort, Untracked: true,
			Key: service.FrontendKey{Addr: to.Addr(), Port: to.Port(), Protocol: service.Protocol(tuple.Protocol)}}
		row := codec.NewFrontend(&f, 7)
		must(t, row.Store(tables, 1))
		key := codec.FrontendKey(f.Key)
		must(t, p.Maps[shared.SharedMapFrontends].Put(&key, uint32(1)))
		var ends bpf.UntrackedEnds
		ends.Add(key)
		must(t, p.Maps[shared.SharedMapUntrackedFrontends].Put(uint32(0), &ends))
		reserved, ok := row.ReservedPort()
		if !ok {
			t.Fatal("a NodePort reserves no port")
		}
		must(t, p.Maps[shared.SharedMapReservedPorts].Put(&reserved, uint32(1)))
		bits := new(bpf.EdgeTCPrefilter)
		prefilter := bpf.NewPrefilter(bits, func() error { return nil })
		bit := key
		if r.IntN(2) == 0 {
			bit.Port = 0 // a frontend with every port
		}
		must(t, prefilter.Rebuild(func() error {
			prefilter.Add(bit)
			return nil
		}))
		must(t, p.Maps[shared.SharedMapPrefilters].Put(uint32(0), bits))
		p.Run(&c)
		if c.Frontend != 1 || service.FrontendKind(c.FrontendKind) != service.NodePort || c.Untracked != 1 || c.Bind != 1 || c.Prefilter != 1 {
			t.Fatalf("for %s a program finds row %d of kind %d, untracked %d, bind %d, prefilter %d", f.Key, c.Frontend, c.FrontendKind, c.Untracked, c.Bind, c.Prefilter)
		}
		wantEntryBits(t, p, prefilter, bits, tuple, c.Flags)
		other := c
		other.Tuple.Destination.Bytes[15]++
		other.Tuple.DestinationPort++
		p.Run(&other)
		if other.Frontend == 1 || other.Bind == 1 {
			t.Fatalf("another destination than %s finds row %d, bind %d", f.Key, other.Frontend, other.Bind)
		}
		must(t, p.Maps[shared.SharedMapFrontends].Delete(&key))
		must(t, p.Maps[shared.SharedMapReservedPorts].Delete(&reserved))
	}
}

// wantEntryBits fails the test unless the program has set the bits for a conntrack entry that the agent sets.
func wantEntryBits(t *testing.T, p *shared.Program, prefilter *bpf.Prefilter, bits *bpf.EdgeTCPrefilter, key bpf.Tuple, flags uint8) {
	t.Helper()
	prefilter.AddFlow(key, &bpf.ConntrackEntry{Flags: flags})
	got := new(bpf.EdgeTCPrefilter)
	must(t, p.Maps[shared.SharedMapPrefilters].Lookup(uint32(0), got))
	if !slices.Equal(got.Bits[:], bits.Bits[:]) {
		t.Fatalf("the programs and the agent set different bits of the prefilter for %s > %s with flags %#x", key.From(), key.To(), flags)
	}
}

// TestServiceNetworksReadByC: addresses of a ServiceCIDR pass the prefilter of the programs, and others do
// not.
func TestServiceNetworksReadByC(t *testing.T) {
	r, p := shared.Random(t), shared.Load(t)
	for range sharedInputs {
		c := randomCall(r)
		to := netip.AddrFrom16(c.Tuple.Destination.Bytes).Unmap()
		network := netip.PrefixFrom(to, 1+r.IntN(to.BitLen())).Masked()
		bits := new(bpf.EdgeTCPrefilter)
		prefilter := bpf.NewPrefilter(bits, func() error { return nil })
		must(t, prefilter.SetServiceNetworks([]netip.Prefix{network}))
		must(t, prefilter.Rebuild(func() error { return nil }))
		must(t, p.Maps[shared.SharedMapPrefilters].Put(uint32(0), bits))
		if p.Run(&c); c.Prefilter != 1 {
			t.Fatalf("%s is in the ServiceCIDR %s, and the programs do not look it up", to, network)
		}
		outside := c
		at := 128 - to.BitLen() + r.IntN(network.Bits()) // a bit of the prefix
		outside.Tuple.Destination.Bytes[at/8] ^= 0x80 >> (at % 8)
		must(t, p.Maps[shared.SharedMapPrefilters].Put(uint32(0), bits))
		if p.Run(&outside); outside.Prefilter != 0 {
			t.Fatalf("%s is not in the ServiceCIDR %s, and the programs look it up", netip.AddrFrom16(outside.Tuple.Destination.Bytes).Unmap(), network)
		}
	}
}

// rows returns the table of rows of a Program.
type rows struct {
	p *shared.Program
	t *testing.T
}

func (a rows) Len() uint32 { return 2 }

func (a rows) Load(i uint32) (row bpf.Frontend) {
	must(a.t, a.p.Maps[shared.SharedMapFrontendRows].Lookup(i, &row))
	return row
}

func (a rows) Store(i uint32, row bpf.Frontend) error {
	return a.p.Maps[shared.SharedMapFrontendRows].Put(i, &row)
}

func (a rows) All() (map[uint32]bpf.Frontend, error) {
	return map[uint32]bpf.Frontend{1: a.Load(1)}, nil
}

// randomCall returns a random call, with addresses of one family and zero reserved bytes.
func randomCall(r *rand.Rand) (c shared.Call) {
	all := unsafe.Slice((*byte)(unsafe.Pointer(&c)), unsafe.Offsetof(c.TupleHash))
	for i := range all {
		all[i] = byte(r.Uint32())
	}
	c.Sets, c.Slots = 1+r.Uint32N(1<<r.IntN(24)), 1+r.Uint32N(1<<r.IntN(24))
	c.IsV6 = uint8(r.IntN(2))
	if c.Now = c.Mark.Expires + uint32(r.IntN(3)) - 1; r.IntN(2) == 0 {
		c.Now = r.Uint32()
	}
	c.Tuple.Reserved = [3]uint8{}
	few := 1 + r.Uint32N(4) // Services
	owner := func() uint32 { return r.Uint32N(few)<<settable.RankBits | r.Uint32N(settable.RankClosed+1) }
	c.Mark.Owner = owner()
	for place := range c.Tags.Tags { // a full set; now and then a place is claimed
		c.Tags.Tags[place] = max(1, c.Tags.Tags[place]&^settable.Claimed) | settable.Claimed*uint32(r.IntN(8)/7)
		mark := &c.Evictions.Evictions[place]
		mark.Expires, mark.Owner = c.Now+uint32(r.IntN(40))-8, owner()
	}
	for _, address := range []*[16]byte{&c.Tuple.Source.Bytes, &c.Tuple.Destination.Bytes, &c.Affinity.Client.Bytes} {
		if c.IsV6 == 0 {
			copy(address[:], []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff})
		} else {
			address[0] |= 0x20 // not IPv4-mapped
		}
	}
	return c
}

// pickOf is the result of set_pick for the full set of a call, by Go.
func pickOf(c *shared.Call) uint64 {
	tags, marks := (*settable.SetTags)(unsafe.Pointer(&c.Tags)), (*settable.Evictions)(unsafe.Pointer(&c.Evictions))
	const dead, live, none = 32, 64, 128 // enum set_pick
	switch v := settable.PickVictim(tags, marks, settable.Eviction{Expires: c.Mark.Expires, Owner: c.Mark.Owner}, c.Now); {
	case !v.Found:
		return none
	case v.Dead:
		return uint64(v.Place) | dead
	default:
		return uint64(v.Place) | live
	}
}

func number(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
