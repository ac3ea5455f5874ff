// SPDX-License-Identifier: Apache-2.0

package flowtable

import (
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

const trackChain = "track"

// isTrack: an earlier version had a hook call the chain.
func isTrack(c *nftables.Chain) bool {
	return c.Table.Name == TableName && c.Name == trackChain && c.Hooknum == nil
}

// Track has the kernel's conntrack follow the flows of this network namespace: it does so while there is a rule that
// asks for a flow's state (nft_ct_get_init). No hook calls the rule's chain: packets do not pay for it. Beeline's table
// then has only that rule, and no flowtable. Remove ends it.
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
	chain := c.AddChain(&nftables.Chain{Table: table, Name: trackChain})
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{&expr.Ct{Key: expr.CtKeySTATE, Register: 1}}})
	if err := c.Flush(); err != nil {
		return fmt.Errorf("create table inet %s of nftables, by which conntrack follows forwarded flows: %w", TableName, err)
	}
	return nil
}
