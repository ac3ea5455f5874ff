// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"strings"
	"testing"
)

// TestLimitsCanChange: a table is copied to its new size, and the attached programs are replaced with it.
// What does not fit is refused with the name of the flag.
func TestLimitsCanChange(t *testing.T) {
	o := options(t)
	o.Limits = Limits{Frontends: 10, Backends: 100, Slots: 50}
	d := mustOpen(t, o)
	for n := range byte(8) {
		must(t, d.Tables.Frontends.Put(frontendKey(n), uint32(n)))
	}
	must(t, d.Tables.Backends.Store(60, Backend{Port: 1}))
	must(t, d.Attach())
	d.Close()
	for _, test := range []struct {
		limits Limits
		flag   string // of what does not fit; empty if all does
	}{
		{Limits{Frontends: 1000, Backends: 2000, Slots: 3000}, ""},
		{Limits{Frontends: 8, Backends: 60, Slots: 10}, ""},
		{Limits{Frontends: 7, Backends: 60, Slots: 10}, "--max-frontends"},
		{Limits{Frontends: 8, Backends: 59, Slots: 10}, "--max-backends"},
		{Limits{Frontends: 9, Backends: 61, Slots: 11}, ""},
	} {
		o.Limits = test.limits
		d, err := Open(o)
		if test.flag != "" {
			if err == nil || !strings.Contains(err.Error(), test.flag) {
				t.Errorf("%+v: %v", test.limits, err)
			}
			continue
		}
		must(t, err)
		must(t, d.Attach())
		d.Close()
		tables, err := OpenTables(o.BPFFS)
		must(t, err)
		index, err := tables.Frontends.All()
		if len(index) != 8 || err != nil || tables.Frontends.Max() != test.limits.Frontends {
			t.Errorf("%+v: the pinned table has %d entries of %d, %v", test.limits, len(index), tables.Frontends.Max(), err)
		}
		if tables.Backends.Len() != test.limits.Backends+1 || tables.Backends.Load(60).Port != 1 {
			t.Errorf("%+v: the pinned backends are %d, the last is %v", test.limits, tables.Backends.Len(), tables.Backends.Load(60))
		}
	}
}
