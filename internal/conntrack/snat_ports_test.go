// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"fmt"
	"strings"
	"testing"

	"beeline.io/beeline/internal/bpf"
)

func TestParseSNATPorts(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"1024-29999,61000-65535", ""},
		{"5000", ""},
		{"1-65535", ""},
		{"0-5", "from a port above 0"},
		{"9-8", "from a port above 0"},
		{"a-b", `"a-b" is not a range of ports`},
		{"1-2-3", "is not a range of ports"},
		{"1-65536", "is not a range of ports"},
		{"", "is not a range of ports"},
		{"1-2,4-5,7-8", "3 ranges: give one or two"},
		{"1-20,20-30", "ranges 1-20 and 20-30 overlap"},
	} {
		_, err := ParseSNATPorts(strings.Split(c.text, ","))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("--snat-ports=%s: %v, want %q", c.text, err, c.want)
		}
	}
}

// Ports that the node's own connections or NodePorts use are refused, and the
// message names both ranges and the flag.
func TestPortsThatOthersUse(t *testing.T) {
	local := bpf.PortRange{First: 32768, Last: 60999}
	for _, c := range []struct{ text, want string }{
		{"1024-29999,61000-65535", ""},
		{"1024-30000", "--snat-ports: 1024-30000 overlaps the NodePorts 30000-32767"},
		{"1024-2000,60999-61005", "--snat-ports: 60999-61005 overlaps 32768-60999, the ports of the node's own connections"},
		{"32767-32767", "overlaps the NodePorts"},
	} {
		ranges, err := ParseSNATPorts(strings.Split(c.text, ","))
		if err != nil {
			t.Fatal(err)
		}
		err = CheckSNATPorts(ranges, local)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.text, err, c.want)
		}
	}
}

// By default the ports are those that nothing else uses, whatever the host's range is.
func TestPortsThatAreFree(t *testing.T) {
	for _, c := range []struct {
		first, last uint16
		want        string
	}{
		{32768, 60999, "[1024-29999 61000-65535]"},
		{1024, 65000, "[65001-65535]"},
		{10000, 65535, "[1024-9999]"},
		{15000, 20000, "[1024-14999 32768-65535]"},
		{1024, 65535, "[]"},
		{1, 65535, "[]"},
	} {
		local := bpf.PortRange{First: c.first, Last: c.last}
		free := FreeSNATPorts(local)
		if got := fmt.Sprint(free); got != c.want {
			t.Errorf("beside %s: %s, want %s", local, got, c.want)
		}
		if err := CheckSNATPorts(free, local); err != nil {
			t.Error(err)
		}
	}
}
