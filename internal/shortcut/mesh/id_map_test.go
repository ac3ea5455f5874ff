// SPDX-License-Identifier: Apache-2.0

package mesh

import "testing"

// TestIDMap: ids of a user namespace are mapped as the kernel does; others are nobody's.
func TestIDMap(t *testing.T) {
	m, err := parseIDMap("         0     100000       1000\n      1337     200000          1\n 4294967294 5 1\n")
	if err != nil {
		t.Fatal(err)
	}
	for inside, want := range map[uint32]uint32{0: 100000, 999: 100999, 1337: 200000, 4294967294: 5} {
		if got, ok := m.outside(inside); !ok || got != want {
			t.Errorf("id %d is %d (%v), want %d", inside, got, ok, want)
		}
	}
	for _, inside := range []uint32{1000, 1336, 1338, 4294967293} {
		if got, ok := m.outside(inside); ok {
			t.Errorf("id %d, which is not mapped, is %d", inside, got)
		}
	}
	if got, ok := (idMap)(nil).outside(1337); got != 1337 || !ok {
		t.Errorf("in the agent's user namespace id 1337 is %d (%v)", got, ok)
	}
	if _, err := parseIDMap("0 1\n"); err == nil {
		t.Error("a line with two numbers is accepted")
	}
}
