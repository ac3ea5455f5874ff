// SPDX-License-Identifier: Apache-2.0

package netdev

import "testing"

// TestXDPLossNames: of a driver's counts only those of lost packets that XDP sent are summed.
func TestXDPLossNames(t *testing.T) {
	for name, want := range map[string]bool{
		"rx_queue_0_xdp_tx_errors": true, "tx_queue_0_xdp_xmit_errors": true, "rx0_xdp_tx_drops": true, "rx_xdp_tx_full": true, "tx_xdp_err": true,
		"rx_queue_0_xdp_drops": false, "rx_queue_0_xdp_tx": false, "rx_queue_0_drops": false, "tx_queue_errors": false,
	} {
		if isXDPLoss(name) != want {
			t.Errorf("%s: %t", name, !want)
		}
	}
}
