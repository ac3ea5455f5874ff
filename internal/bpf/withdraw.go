// SPDX-License-Identifier: Apache-2.0

package bpf

import "fmt"

// Withdraw removes all Services from the tables that programs look up for new connections and flows, which then pass
// to the node's stack. Flows in conntrack tables go on. The networks of Services come first: with them, the programs
// drop what is for none of their frontends (R21).
func (t *Tables) Withdraw() error {
	networks, err := t.Networks.All()
	if err != nil {
		return err
	}
	for key, network := range networks {
		if network == NetworkPod {
			continue
		}
		if err := t.Networks.Delete(key); err != nil {
			return fmt.Errorf("delete a network of Services: %w", err)
		}
	}
	if err := t.UntrackedFrontends.Store(0, UntrackedEnds{}); err != nil {
		return err
	}
	if err := deleteAll(t.Frontends); err != nil {
		return fmt.Errorf("delete a frontend: %w", err)
	}
	if err := deleteAll(t.ReservedPorts); err != nil {
		return fmt.Errorf("delete a reserved port: %w", err)
	}
	return nil
}

// deleteAll empties a table.
func deleteAll[K comparable, V any](table Hash[K, V]) error {
	all, err := table.All()
	if err != nil {
		return err
	}
	for key := range all {
		if err := table.Delete(key); err != nil {
			return err
		}
	}
	return nil
}
