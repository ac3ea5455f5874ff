// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"

	"beeline.io/beeline/internal/tables/reconcile"
)

// defaultShares apply with an API server, whose objects have many authors. Manifests have one author.
var defaultShares = reconcile.Shares{Service: 25, Namespace: 50}

// completeShares sets defaults and validates the shares.
func (c *Config) completeShares() error {
	defaults := defaultShares
	if c.Manifests != "" {
		defaults = reconcile.Shares{Service: 100, Namespace: 100}
	}
	s := &c.Shares
	if s.Service > 100 || s.Namespace > 100 {
		return fmt.Errorf("--service-share %d, --namespace-share %d: give a percentage of each table from 1 to 100", s.Service, s.Namespace)
	}
	switch {
	case s.Service == 0 && s.Namespace == 0:
		*s = defaults
	case s.Service == 0:
		s.Service = min(defaults.Service, s.Namespace)
	case s.Namespace == 0:
		s.Namespace = max(defaults.Namespace, s.Service)
	case s.Service > s.Namespace:
		return errors.New("--service-share is more than --namespace-share, which also limits each Service of a namespace: lower --service-share")
	}
	return nil
}
