// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"slices"

	"github.com/spf13/pflag"

	"beeline.io/beeline/internal/service"
)

// config is the configuration of the gateway.
type config struct {
	devices   []string
	threshold uint32
}

func (c *config) addFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&c.devices, "gateway-devices", []string{"off"}, "devices")
	fs.Uint32Var(&c.threshold, "gateway-threshold", 20, "packets")
}

func (c *config) enabled() bool { return !slices.Equal(c.devices, []string{"off"}) }

func (c *config) complete(*service.Config) error { return nil }
