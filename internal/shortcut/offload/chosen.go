// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"context"
	"fmt"
	"time"

	"github.com/ti-mo/conntrack"

	"beeline.io/beeline/internal/conntrack/kernelct"
	"beeline.io/beeline/internal/node/flow"
	"beeline.io/beeline/internal/util/wakeup"
)

// chooseInterval is how often flows are chosen for a flowtable if rules keep some of them on the stack.
const chooseInterval = time.Second

// chooseFlows has the flowtable take the flows that bypass no rule: while there are such rules it takes none by itself.
func (o *Offload) chooseFlows(ctx context.Context) error {
	for wakeup.Sleep(ctx, chooseInterval) {
		if o.config.IgnoreFilters || len(o.rules.findings()) == 0 {
			continue
		}
		ids, err := o.allowed()
		if err == nil && len(ids) > 0 {
			err = o.flowtable.Choose(ids...)
		}
		o.note("flows for the flowtable", err)
	}
	return nil
}

// allowed returns the flows of the kernel's conntrack that are assured and may be offloaded, by conntrack's ID. Their
// devices are not known: they count as any.
func (o *Offload) allowed() (ids []uint32, err error) {
	c, err := conntrack.Dial(nil)
	if err != nil {
		return nil, fmt.Errorf("open the kernel's conntrack: %w", err)
	}
	defer c.Close()
	all, err := c.Dump(nil)
	if err != nil {
		return nil, fmt.Errorf("list the kernel's conntrack: %w", err)
	}
	for i := range all {
		t := &all[i]
		if t.Status&conntrack.StatusAssured == 0 || t.Status&conntrack.StatusOffload != 0 || t.Helper.Name != "" {
			continue
		}
		if o.refusal(flow.Flow{In: kernelct.FlowOf(&t.TupleOrig), Out: kernelct.FlowOf(&t.TupleReply).Reverse()}) == "" {
			ids = append(ids, t.ID)
		}
	}
	return ids, nil
}
