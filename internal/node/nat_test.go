// SPDX-License-Identifier: Apache-2.0

package node

import (
	"os/exec"
	"strings"
	"testing"
)

// A chain that translates sources is found, other chains are none.
func TestTranslatesSources(t *testing.T) {
	inNamespace(t, func() error {
		want := func(want bool) {
			t.Helper()
			if got, err := TranslatesSources(); err != nil || got != want {
				t.Errorf("TranslatesSources() = %v, %v; want %v", got, err, want)
			}
		}
		nft := func(rules string) {
			t.Helper()
			c := exec.Command("nft", "-f", "-")
			c.Stdin = strings.NewReader(rules)
			if out, err := c.CombinedOutput(); err != nil {
				t.Errorf("nft: %v: %s", err, out) // not Fatal: it would end the goroutine that the test waits for
			}
		}
		want(false)
		nft("table inet t { chain pre { type nat hook prerouting priority -100; }; chain post { type filter hook postrouting priority 0; }; }")
		want(false)
		nft("table ip6 t { chain post { type nat hook postrouting priority 100; }; }")
		want(true)
		return nil
	})
}
