// SPDX-License-Identifier: Apache-2.0

package api

import (
	"beeline.io/beeline/internal/cluster/service"
)

// Member is a backend of a set. Its share of new connections is Slots divided by the sum of Slots.
type Member struct {
	ID      uint32 `json:"id"`
	Address string `json:"address"`
	Local   bool   `json:"local"`
	// NodeAddress is the address of the backend's node, if packets are sent to it (geneve).
	NodeAddress string `json:"nodeAddress,omitempty"`
	Slots       int    `json:"slots"`
}

// Backend is an endpoint of at least one frontend.
type Backend struct {
	ID          uint32           `json:"id"`
	Address     string           `json:"address"`
	Protocol    service.Protocol `json:"protocol"`
	Local       bool             `json:"local"`
	NodeAddress string           `json:"nodeAddress,omitempty"` // as in Member
	Services    []string         `json:"services"`              // namespace/name of the Services that use it
}
