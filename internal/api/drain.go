// SPDX-License-Identifier: Apache-2.0

package api

import (
	"beeline.io/beeline/internal/bpf/pinfs"
)

// Drain is a `beeline cleanup --drain`.
type Drain struct {
	pinfs.Drain
	Flows int `json:"flows"` // that are known and not closed
}
