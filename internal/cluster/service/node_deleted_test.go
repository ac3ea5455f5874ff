// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"testing"
)

// R39: the last state of this node's Node object stays in use when it is deleted.
func TestR39TheOwnNodeIsDeleted(t *testing.T) {
	config := testConfig()
	own := &Node{Name: "here", Zone: "east", Addresses: addrs(hereIP, hereIP6), PodCIDRs: prefixes("10.1.0.0/24")}
	there := &Node{Name: "there", Zone: "west", Addresses: addrs(thereIP), PodCIDRs: prefixes("10.1.1.0/24")}
	table := cluster(config, own, there, service("web", nodePort(30080), externalIPs(hereIP, thereIP)), endpoints("a here zone=east", "b there zone=west"))
	facts := func() string {
		return fmt.Sprint(table.OwnAddresses(), table.PodNetworks(), table.Balancers(), table.UnknownNode())
	}
	served := expect{nodeHTTP: "all a masq", webHTTP: everywhere("a"), hereIP + ":80": "all a masq"}
	check(t, table, served)
	before := facts()
	for range 2 { // a deletion may be reported twice
		if d := table.Apply([]Change{gone(own)}); d.Resolved != 0 || d.PodNetworks != nil || d.Balancers != nil {
			t.Errorf("the Node was deleted: resolved %d, networks %v, balancers %v", d.Resolved, d.PodNetworks, d.Balancers)
		}
		if !table.OwnNodeDeleted() || facts() != before {
			t.Errorf("deleted (%t): %s, want %s", table.OwnNodeDeleted(), facts(), before)
		}
		check(t, table, served)
	}

	// What changed before the deletion, in the same batch, counts.
	last := *own
	last.Zone = "west"
	table.Apply([]Change{{Ref: own.Ref(), Last: &last}})
	check(t, table, expect{nodeHTTP: "all b masq", webHTTP: everywhere("b"), hereIP + ":80": "all b masq"})
	if !table.OwnNodeDeleted() {
		t.Error("the Node changed and was deleted, and does not count as deleted")
	}

	// A new Node object replaces it, with only its own address.
	table.Apply(changes(&Node{Name: "here", Zone: "west", Addresses: addrs("192.0.2.9")}))
	check(t, table, expect{nodeHTTP: "none", "192.0.2.9:30080": "all b masq", webHTTP: everywhere("b")})
	if table.OwnNodeDeleted() {
		t.Error("the Node was created again, and counts as deleted")
	}

	// Other nodes' state is removed with them; a node that never had an object has none.
	table.Apply([]Change{gone(there)})
	if n := table.nodeAddrs[addrs(thereIP)[0]]; n != 0 {
		t.Errorf("the other node was deleted, and %d nodes have its address", n)
	}
	table = NewCluster(config)
	table.Apply(append(changes(there), gone(own)))
	if !table.UnknownNode() || table.OwnNodeDeleted() {
		t.Errorf("a Node that never was: unknown %t, deleted %t", table.UnknownNode(), table.OwnNodeDeleted())
	}
}
