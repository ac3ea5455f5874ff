// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"testing"
)

// TestFeatures: this kernel has what the tests need, and each missing feature has a cost.
func TestFeatures(t *testing.T) {
	for _, f := range Features() {
		if f.Required && !f.Present {
			t.Errorf("missing: %+v", f)
		}
		if f.Present != (f.EffectOfAbsence == "") {
			t.Errorf("a feature has a cost if and only if it is missing: %+v", f)
		}
	}
}
