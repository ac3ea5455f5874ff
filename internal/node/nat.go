// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/google/nftables"
)

// TranslatesSources reports whether netfilter may translate sources of packets that leave this network namespace: there
// is a chain of type nat at the hook postrouting, or a table nat of iptables-legacy.
func TranslatesSources() (bool, error) {
	for _, name := range []string{"ip_tables_names", "ip6_tables_names"} {
		text, err := os.ReadFile("/proc/thread-self/net/" + name)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return false, fmt.Errorf("read the tables of iptables: %w", err)
		}
		if slices.Contains(strings.Fields(string(text)), "nat") {
			return true, nil
		}
	}
	chains, err := (&nftables.Conn{}).ListChains()
	if err != nil {
		return false, fmt.Errorf("list the chains of nftables: %w", err)
	}
	return slices.ContainsFunc(chains, func(c *nftables.Chain) bool {
		return c.Type == nftables.ChainTypeNAT && c.Hooknum != nil && *c.Hooknum == *nftables.ChainHookPostrouting
	}), nil
}
