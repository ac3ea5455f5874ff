// SPDX-License-Identifier: Apache-2.0

package flowtable

import (
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

const trackChain = "track"

func isTrack(c *nftables.Chain) bool { return c.Table.Name == TableName && c.Name == trackChain }

// Track has the kernel's conntrack follow the flows of this network namespace: it does so while a rule asks for a
// flow's state. Beeline's table then has only that rule, which does nothing else, and no flowtable. Remove ends it.
func Track() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	if chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet); err == nil && slices.ContainsFunc(chains, isTrack) {
		return nil
	}
	table := tableOf(false)
	remove(c, table)
	remove(c, tableOf(true))
	c.AddTable(table)
	accept := nftables.ChainPolicyAccept
	chain := c.AddChain(&nftables.Chain{
		Table: table, Name: trackChain, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter, Policy: &accept,
	})
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{&expr.Ct{Key: expr.CtKeySTATE, Register: 1}}})
	if err := c.Flush(); err != nil {
		return fmt.Errorf("create table inet %s of nftables, by which conntrack follows forwarded flows: %w", TableName, err)
	}
	return nil
}
