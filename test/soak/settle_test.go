// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"errors"
	"fmt"
	"time"

	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/report/condition"
)

// settle waits until the node is as it should be after an event: all is attached, an audit has compared the
// tables with the plan since, nothing is wrong, and what belongs to others is as it was.
func (w *world) settle(after string) {
	w.t.Helper()
	since := time.Now()
	w.eventually("settled after "+after, func() error {
		s, err := w.agent.Status()
		if err != nil {
			return err
		}
		if s.Sync.Repairs > 0 {
			w.t.Errorf("%s: an audit found %d differences between tables and plan", after, s.Sync.Repairs)
			return nil
		}
		w.fill.note(s)
		return errors.Join(unsettled(s, since), w.foreign.check())
	})
}

// unsettled says what is not as it should be.
func unsettled(s *api.Status, since time.Time) error {
	if !s.Sync.Synced || len(s.Attachments) != s.ExpectedAttachments || s.Sync.Failing > 0 || !s.Sync.LastAudit.After(since) {
		return fmt.Errorf("not in the tables, not attached or not audited: %+v", s.Sync)
	}
	for _, c := range s.Conditions.Wrong() {
		if !expected(c) {
			return fmt.Errorf("status reports %s", c)
		}
	}
	modes := map[string]string{}
	for _, d := range s.Edge.Devices {
		modes[d.Name] = d.Mode
	}
	if modes["eth0"] != "xdp" || modes["eth1"] != "tc" {
		return fmt.Errorf("the devices are served by %v", modes)
	}
	return nil
}

// expected reports whether a condition is no fault of the node: the foreign program keeps XDP at eth1, floods fill
// tables, and the queue of a veth with 256 places overflows when the machine has no CPU time for it.
func expected(c condition.Condition) bool {
	return c.Code == condition.DeviceModeRefused.Code && c.Object == "eth1" ||
		c.Code == condition.TableNearlyFull.Code && c.Object == "affinity" || c.Code == condition.FlowsNearlyFull.Code ||
		c.Code == condition.DeviceLosesPackets.Code
}
