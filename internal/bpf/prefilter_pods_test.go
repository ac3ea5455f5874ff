// SPDX-License-Identifier: Apache-2.0

package bpf

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

// PodsComplete is set only if the programs know all pod networks: if these are few after joining adjacent
// ones, no Service network overlaps them, and none contains mapped IPv4.
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
			t.Errorf("%s: complete: %v", c.name, d.PodsComplete())
		}
	}
}

// A complete set holds exactly the addresses that are pods' according to the table.
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
			longest, want := -1, false // by the rules of the table
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
				t.Fatalf("with pod networks %v and Service networks %v, %v counts as a pod's: %v", pods, services, a, got)
			}
		}
	}
	if whole < 400 {
		t.Errorf("only %d have been complete", whole)
	}
}

// No network is written while programs run that see PodsComplete, and it is set only after all programs
// have ended that may have read a network before. If waiting fails, programs use the table until it
// succeeds.
func TestPrefilterPodsChange(t *testing.T) {
	d, at := newTestPrefilter()
	services := prefixes("10.96.0.0/16")
	must(t, d.SetPodNetworks(prefixes("10.0.1.0/24"), services))
	waited, before := 0, at.Pods4
	failAt, failed := 0, errors.New("planted")
	d.wait = func() error {
		waited++
		if d.PodsComplete() {
			t.Error("the networks are complete while they change")
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
		t.Errorf("the same networks: waited %d times, complete: %v", waited, d.PodsComplete())
	}
	must(t, d.SetPodNetworks(prefixes("10.0.3.0/24"), services))
	if waited != 2 || !d.PodsComplete() {
		t.Errorf("other networks: waited %d times, complete: %v", waited, d.PodsComplete())
	}
	for failAt = 1; failAt <= 2; failAt++ {
		waited, before = 0, at.Pods4
		next := prefixes([]string{"10.0.5.0/24", "10.0.7.0/24"}[failAt-1])
		if err := d.SetPodNetworks(next, services); !errors.Is(err, failed) || d.PodsComplete() {
			t.Errorf("wait %d failed: %v, complete: %v", failAt, err, d.PodsComplete())
		}
	}
	// The networks are written, but there was no wait since: it is made up for.
	failAt, waited, before = 0, 1, EdgeTCPrefilter{}.Pods4
	must(t, d.SetPodNetworks(prefixes("10.0.7.0/24"), services))
	if waited != 2 || !d.PodsComplete() {
		t.Errorf("at last: waited %d times, complete: %v", waited-1, d.PodsComplete())
	}
}
