// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

func newTestPrefilter() (*Prefilter, *EdgeTCPrefilter) {
	at := new(EdgeTCPrefilter)
	return NewPrefilter(at, func() error { return nil }), at
}

// A table of zeros is a disabled prefilter, and if filling fails it stays unchanged.
func TestPrefilterDisabledAtFirst(t *testing.T) {
	d, _ := newTestPrefilter()
	if d.Enabled() {
		t.Error("a new prefilter is enabled")
	}
	failed := errors.New("planted")
	if err := d.Rebuild(func() error { return failed }); !errors.Is(err, failed) || d.Enabled() {
		t.Errorf("a prefilter that could not be filled: %v, enabled %v", err, d.Enabled())
	}
	must(t, d.Rebuild(func() error { return nil }))
	if !d.Enabled() {
		t.Error("a prefilter that has been filled is disabled")
	}
	before := d.at.State
	if err := d.Rebuild(func() error { return failed }); !errors.Is(err, failed) || d.at.State != before {
		t.Errorf("a prefilter that could not be filled again: %v, state %d, want %d", err, d.at.State, before)
	}
	d.Disable()
	if d.Enabled() {
		t.Error("a disabled prefilter is enabled")
	}
}

// What is added stays, at whichever point of a rebuild it is added; what is not added again is cleared.
func TestPrefilterRebuild(t *testing.T) {
	d, at := newTestPrefilter()
	parts := map[string]FrontendKey{"before": frontendKey(1), "as programs end": frontendKey(2), "as it is filled": frontendKey(3)}
	d.wait = func() error { d.Add(parts["as programs end"]); return nil }
	for round := range 4 {
		d.Add(parts["before"])
		d.Add(frontendKey(byte(100 + round))) // not added again
		err := d.Rebuild(func() error {
			d.Add(parts["as it is filled"])
			d.Add(parts["before"])
			return nil
		})
		must(t, err)
		if want := uint32(1 + round%2); at.State != want {
			t.Errorf("round %d: set %d holds, want %d", round, at.State, want)
		}
		for part, key := range parts {
			if !d.Contains(key) {
				t.Errorf("round %d: what was added %s is missing", round, part)
			}
		}
		if d.Contains(frontendKey(byte(100 + round))) {
			t.Errorf("round %d: what was not added again is still there", round)
		}
	}
	d.Disable()
	if !d.Contains(frontendKey(100)) {
		t.Error("a disabled prefilter does not pass everything")
	}
}

// A change of ServiceCIDRs disables the prefilter until it is rebuilt, also during a rebuild; the same ones
// do not.
func TestPrefilterNetworks(t *testing.T) {
	d, _ := newTestPrefilter()
	networks := []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("fd00:96::/112")}
	must(t, d.SetServiceNetworks(networks))
	must(t, d.Rebuild(func() error { return nil }))
	must(t, d.SetServiceNetworks(networks))
	if !d.Enabled() {
		t.Error("the same networks have disabled the prefilter")
	}
	must(t, d.Rebuild(func() error { return d.SetServiceNetworks(networks[:1]) }))
	if d.Enabled() {
		t.Error("a prefilter has been enabled while its networks changed")
	}
	must(t, d.Rebuild(func() error { return nil }))
	failed := errors.New("planted")
	wait := d.wait
	d.wait = func() error { return failed }
	if err := d.SetServiceNetworks(networks); !errors.Is(err, failed) {
		t.Errorf("networks that could not be set: %v", err)
	}
	d.wait = wait
	must(t, d.Rebuild(func() error { return nil }))
	if d.Enabled() {
		t.Error("a prefilter has been enabled without the wanted networks")
	}
	must(t, d.SetServiceNetworks(networks))
	must(t, d.Rebuild(func() error { return nil }))
	if !d.Enabled() {
		t.Error("the prefilter stays disabled")
	}
}

// By the comparison of the programs, networks contain each address that they should, and, if they fit, no
// other.
func TestPrefilterNetworksHold(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		var networks []netip.Prefix
		for range random.IntN(6) {
			networks = append(networks, randomNetwork(random))
		}
		choose := random.IntN(2)
		v4, v6 := prefilterNetworks(networks, int(EdgeTCPrefilterSizePREFILTER_NETWORKS), []func([]netip.Prefix, int) []netip.Prefix{summarize, largestNetworks}[choose])
		for range 20 {
			a := randomNetwork(random).Addr()
			in, fit := false, [2]int{}
			for _, p := range networks {
				in = in || p.Contains(a)
				if p.Addr().Is4() {
					fit[0]++
				} else {
					fit[1]++
				}
			}
			got := false
			if a.Is4() {
				b := AddressFrom(a).Bytes
				word := prefilterWords(b)[1] >> 32
				for _, n := range v4 {
					got = got || uint32(word)&n.Mask == n.Value
				}
			} else {
				words := prefilterWords(AddressFrom(a).Bytes)
				for _, n := range v6 {
					got = got || words[0]&n.Mask[0] == n.Value[0] && words[1]&n.Mask[1] == n.Value[1]
				}
			}
			all := fit[0] <= len(v4) && a.Is4() || fit[1] <= len(v6) && a.Is6()
			// Sometimes there are more networks than fit, sometimes fewer.
			if choose == 0 && in && !got || choose == 1 && got && !in || all && got != in {
				t.Fatalf("with networks %v, %v is inside: %v; want %v (%v %v)", networks, a, got, in, v4, v6)
			}
		}
	}
}

// randomNetwork uses few addresses, so that networks overlap.
func randomNetwork(random *rand.Rand) netip.Prefix {
	if random.IntN(2) == 0 {
		a := netip.AddrFrom4([4]byte{10, byte(random.IntN(4)), byte(random.IntN(4)), byte(random.IntN(2) * 128)})
		return netip.PrefixFrom(a, random.IntN(33)).Masked()
	}
	a := netip.AddrFrom16([16]byte{0: 0xfd, 7: byte(random.IntN(4)), 8: byte(random.IntN(4)), 15: byte(random.IntN(2))})
	return netip.PrefixFrom(a, random.IntN(129)).Masked()
}

// The next agent finds the prefilter unchanged, together with the conntrack entries in the tables; without
// tables it is disabled.
func TestPrefilterOutlivesAgent(t *testing.T) {
	o := options(t)
	for _, again := range []bool{false, true} {
		d := mustOpen(t, o)
		prefilter := d.Prefilter()
		if prefilter.Enabled() != again || prefilter.Contains(frontendKey(2)) == again || !prefilter.Contains(frontendKey(1)) {
			t.Errorf("second agent: %v; the prefilter is enabled: %v; it passes frontend 1: %v, 2: %v", again, prefilter.Enabled(),
				prefilter.Contains(frontendKey(1)), prefilter.Contains(frontendKey(2)))
		}
		must(t, prefilter.Rebuild(func() error { prefilter.Add(frontendKey(1)); return nil }))
		prefilter.Add(frontendKey(1))
		d.Close()
	}
}

// Service networks that could not be changed and are no longer wanted do not keep the prefilter disabled
// forever.
func TestPrefilterNetworksTakenBack(t *testing.T) {
	d, _ := newTestPrefilter()
	before := []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}
	must(t, d.SetServiceNetworks(before))
	failed := errors.New("planted")
	d.wait = func() error { return failed }
	if err := d.SetServiceNetworks([]netip.Prefix{netip.MustParsePrefix("10.112.0.0/12")}); !errors.Is(err, failed) {
		t.Fatalf("other networks while programs may be running: %v", err)
	}
	d.wait = func() error { return nil }
	must(t, d.Rebuild(func() error { return nil }))
	if d.Enabled() {
		t.Error("the prefilter is enabled without all wanted networks")
	}
	must(t, d.SetServiceNetworks(before))
	must(t, d.Rebuild(func() error { return nil }))
	if !d.Enabled() {
		t.Error("the prefilter is disabled, though it has the wanted networks")
	}
}

// A set is cleared only when no program reads it. A socket's hook may be preempted between its look at the state and
// at the bits, so a set that has gone out of use, by a rebuild or because the prefilter was disabled meanwhile, keeps
// its bits until programs have ended.
func TestPrefilterSetsInUseAreNotCleared(t *testing.T) {
	bits := new(EdgeTCPrefilter)
	key := FrontendKey{Address: Address{Bytes: [16]byte{15: 1}}, Port: 80}
	sets := func() (marked int) {
		for _, set := range [][]uint64{bits.Bits[:EdgeTCPrefilterSizePREFILTER_WORDS], bits.Bits[EdgeTCPrefilterSizePREFILTER_WORDS:]} {
			if slices.ContainsFunc(set, func(w uint64) bool { return w != 0 }) {
				marked++
			}
		}
		return marked
	}
	waits, waiting := 0, func() {}
	d := NewPrefilter(bits, func() error { waits++; waiting(); return nil })
	must(t, d.Rebuild(func() error { d.Add(key); return nil })) // Add sets the bits of both sets
	for _, c := range []struct {
		name  string
		begin func()
	}{
		{"a rebuild", func() { must(t, d.Rebuild(func() error { d.Add(key); return nil })) }},
		{"a GC pass", func() {
			d.SetProgramsCurrent(true)
			r := d.BeginRebuild()
			must(t, d.wait())
			d.Add(key)
			r.End()
		}},
	} {
		for _, disabled := range []bool{false, true} {
			waits = 0
			waiting = func() {
				switch {
				case waits == 1 && sets() != 2:
					t.Errorf("%s clears a set before programs have ended that may read it", c.name)
				case waits == 1 && disabled:
					d.Disable()
				case waits == 2 && sets() != 1:
					t.Errorf("%s, disabled %v: %d sets have bits after one was cleared", c.name, disabled, sets())
				case waits == 2 && disabled && !d.has(uint64(d.last-EdgeTCPrefilterStatePREFILTER_FIRST)*uint64(EdgeTCPrefilterSizePREFILTER_WORDS), prefilterAddress(key.Address.Bytes)):
					t.Errorf("%s clears the set that was in use when it began", c.name)
				}
			}
			c.begin()
			if waits != 2 || !d.Enabled() {
				t.Errorf("%s waits %d times, enabled %v", c.name, waits, d.Enabled())
			}
			waiting = func() {}
			must(t, d.Rebuild(func() error { d.Add(key); return nil }))
		}
	}
}

// ServiceCIDRs in any order are the same: the prefilter stays enabled, also if one lies in another.
func TestPrefilterServiceNetworksInAnyOrder(t *testing.T) {
	d, _ := newTestPrefilter()
	var networks []netip.Prefix
	for _, p := range []string{"10.96.0.0/16", "10.96.0.0/12", "10.96.0.0/20", "10.0.0.0/24", "fd00:96::/112", "fd00:96::/64", "fd00:96::/108"} {
		networks = append(networks, netip.MustParsePrefix(p))
	}
	must(t, d.SetServiceNetworks(networks))
	must(t, d.Rebuild(func() error { return nil }))
	for range 200 {
		rand.Shuffle(len(networks), func(i, j int) { networks[i], networks[j] = networks[j], networks[i] })
		if must(t, d.SetServiceNetworks(networks)); !d.Enabled() {
			t.Fatalf("%v disables the prefilter, and nothing has changed", networks)
		}
	}
}
