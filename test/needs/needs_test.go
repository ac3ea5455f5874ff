// SPDX-License-Identifier: Apache-2.0

package needs

import (
	"testing"

	"beeline.io/beeline/internal/bpf"
)

// The kernel is asked in another way than the product asks it, with the same result.
func TestProductAgrees(t *testing.T) {
	product := map[*Feature]bool{SockDestroy: bpf.HaveSockDestroy(), MarkedLookups: bpf.RouteLookupsTakeMarks()}
	for _, f := range bpf.Features() {
		switch f.Name {
		case "bpf_sock_destroy":
			product[SockDestroy] = f.Present
		case "programs that replace functions (freplace)":
			product[Replacement] = f.Present
		}
	}
	if len(product) != 3 {
		t.Errorf("the product knows %d of 3 features", len(product))
	}
	for f, has := range product {
		if got := Has(t, f); got != has {
			t.Errorf("the kernel has %s: %v, the product says %v", f.Name, got, has)
		}
	}
	for _, f := range []*Feature{SockDestroy, Flowtable, Replacement, MarkedLookups, NetfilterHooks, SummedTestRuns, Sockmap} {
		t.Logf("%s: %v", f.Name, Has(t, f))
	}
}
