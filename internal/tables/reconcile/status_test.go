// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"testing"

	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/internal/report/condition"
)

// Problems of one kind are one condition, which has each remedy once.
func TestRemediesOfOneKind(t *testing.T) {
	st := Status{Owner: service.Ref{Kind: service.KindService, Namespace: "a", Name: "b"}, State: Applied}
	for _, remedy := range []string{"set one port", "set one port", "remove the NodePort"} {
		st.Problems = append(st.Problems, condition.SCTPPortDiffers.New("ports differ").Do("%s", remedy))
	}
	all := st.Conditions()
	if len(all) != 1 || all[0].Message != "ports differ (and 2 more)" || all[0].Remedy != "set one port; remove the NodePort" {
		t.Errorf("%+v", all)
	}
}
