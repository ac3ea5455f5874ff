// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"testing"
)

// With LateXDP the XDP program is loaded when a device needs it, or when it replaces that of an earlier
// agent.
func TestLateXDP(t *testing.T) {
	w := newEdgeWorld(t)
	w.options.Edge.LateXDP = true
	d := mustOpen(t, w.options)
	if d.program(EdgeXDPProgBeelineEdgeXdp) != nil {
		t.Error("it is loaded before any device needs it")
	}
	w.do(func() error { return errors.Join(d.AttachEdgeTC(w.device), attachXDP(d, w.device, XDPNative)) })
	hooks := fmt.Sprintf("%[1]d egress, %[1]d ingress, %[1]d xdp", w.device)
	w.want(hooks)
	before := w.attached()
	d.Close()
	d = mustOpen(t, w.options)
	w.do(d.Attach)
	w.want(hooks)
	for i, a := range w.attached() {
		if a.LinkID != before[i].LinkID || a.ProgramID == before[i].ProgramID {
			t.Errorf("%s was %+v and is %+v", a.Hook, before[i], a)
		}
	}
}
