// SPDX-License-Identifier: Apache-2.0

package node

import "testing"

// The kernel chooses a port of the range that is not reserved.
func TestLocalPorts(t *testing.T) {
	reserved, err := parsePorts("8080,32770-32772,65535")
	if err != nil {
		t.Fatal(err)
	}
	p := LocalPorts{First: 32768, Last: 60999, Reserved: reserved}
	for port, want := range map[uint16]bool{8080: false, 32768: true, 32770: false, 32772: false, 32773: true, 60999: true, 61000: false} {
		if p.Has(port) != want {
			t.Errorf("Has(%d) = %v, want %v", port, p.Has(port), want)
		}
	}
	if none, err := parsePorts(""); err != nil || len(none) != 0 {
		t.Errorf("no reserved ports: %v, %v", none, err)
	}
	if _, err := ReadLocalPorts(); err != nil {
		t.Error(err)
	}
}
