// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"testing"
)

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// The programs are told that they know all networks of pods only where that is so: where they
// are few once those side by side are one, no Service's is among them, and none has IPv4 inside.
func TestPrefilterPodsComplete(t *testing.T) {
	services := prefixes("10.96.0.0/16", "fd00:96::/112")
	for _, c := range []struct {
		name string
		pods []netip.Prefix
		want bool
	}{
		{"none", nil, true},
		{"as many as find room", prefixes("10.0.1.0/24", "10.0.3.0/24", "10.0.5.0/24", "10.0.7.0/24", "fd00:1::/64", "fd00:3::/64", "fd00:5::/64", "fd00:7::/64"), true},
		{"one more", prefixes("10.0.1.0/24", "10.0.3.0/24", "10.0.5.0/24", "10.0.7.0/24", "10.0.9.0/24"), false},
		{"one more of IPv6", prefixes("fd00:1::/64", "fd00:3::/64", "fd00:5::/64", "fd00:7::/64", "fd00:9::/64"), false},
		{"one more, beside another", prefixes("10.0.1.0/24", "10.0.3.0/24", "10.0.5.0/24", "10.0.6.0/24", "10.0.7.0/24"), true},
		{"around Services", prefixes("10.0.0.0/8"), false},
		{"inside of Services", prefixes("fd00:96::8/125"), false},
		{"around IPv4", prefixes("::/0"), false},
	} {
		d, _ := newTestPrefilter()
		must(t, d.SetPodNetworks(c.pods, services))
		if d.PodsComplete() != c.want {
			t.Errorf("%s: whole: %v", c.name, d.PodsComplete())
		}
	}
}

// What is whole holds just the addresses that the table says are those of pods.
func TestPrefilterPodsHold(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	whole := 0
	for range 4000 {
		var pods, services []netip.Prefix
		for range random.IntN(9) {
			if p := randomNetwork(random); p.Bits() > 12 {
				pods = append(pods, p)
			}
		}
		if random.IntN(4) == 0 {
			services = append(services, randomNetwork(random))
		}
		d, at := newTestPrefilter()
		must(t, d.SetPodNetworks(pods, services))
		if !d.PodsComplete() {
			continue
		}
		whole++
		for range 20 {
			a := randomNetwork(random).Addr()
			longest, want := -1, false // as the table finds it
			for i, p := range append(append([]netip.Prefix(nil), pods...), services...) {
				if p.Contains(a) && p.Bits() > longest {
					longest, want = p.Bits(), i < len(pods)
				}
			}
			words, got := prefilterWords(AddressFrom(a).Bytes), false
			for i := range at.Pods4 {
				v4, v6 := at.Pods4[i], at.Pods6[i]
				if a.Is4() {
					got = got || uint32(words[1]>>32)&v4.Mask == v4.Value
				} else {
					got = got || words[0]&v6.Mask[0] == v6.Value[0] && words[1]&v6.Mask[1] == v6.Value[1]
				}
			}
			if got != want {
				t.Fatalf("of %v, but not %v, %v is told to be a pod's: %v", pods, services, a, got)
			}
		}
	}
	if whole < 400 {
		t.Errorf("only %d have been whole", whole)
	}
}

// No network is written while programs run that take them for whole, and they are told that they
// are only when all have ended that may have read one before. Who cannot wait for that has them look in the
// table, until it can.
func TestPrefilterPodsChange(t *testing.T) {
	d, at := newTestPrefilter()
	services := prefixes("10.96.0.0/16")
	must(t, d.SetPodNetworks(prefixes("10.0.1.0/24"), services))
	waited, before := 0, at.Pods4
	failAt, failed := 0, errors.New("planted")
	d.wait = func() error {
		waited++
		if d.PodsComplete() {
			t.Error("the networks are whole while they change")
		}
		if written := at.Pods4 != before; written != (waited == 2) {
			t.Errorf("at wait %d they are written: %v", waited, written)
		}
		if waited == failAt {
			return failed
		}
		return nil
	}
	must(t, d.SetPodNetworks(prefixes("10.0.1.0/24"), services))
	if waited != 0 || !d.PodsComplete() {
		t.Errorf("the same networks: waited %d times, whole: %v", waited, d.PodsComplete())
	}
	must(t, d.SetPodNetworks(prefixes("10.0.3.0/24"), services))
	if waited != 2 || !d.PodsComplete() {
		t.Errorf("other networks: waited %d times, whole: %v", waited, d.PodsComplete())
	}
	for failAt = 1; failAt <= 2; failAt++ {
		waited, before = 0, at.Pods4
		next := prefixes([]string{"10.0.5.0/24", "10.0.7.0/24"}[failAt-1])
		if err := d.SetPodNetworks(next, services); !errors.Is(err, failed) || d.PodsComplete() {
			t.Errorf("wait %d failed: %v, whole: %v", failAt, err, d.PodsComplete())
		}
	}
	// The networks are written, but nobody has waited since: that is made up for.
	failAt, waited, before = 0, 1, EdgeTCPrefilter{}.Pods4
	must(t, d.SetPodNetworks(prefixes("10.0.7.0/24"), services))
	if waited != 2 || !d.PodsComplete() {
		t.Errorf("at last: waited %d times, whole: %v", waited-1, d.PodsComplete())
	}
}
