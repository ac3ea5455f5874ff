// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"context"
	"errors"
	"strings"
	"time"

	"beeline.io/beeline/internal/shortcut/offload/flowtable"
	"beeline.io/beeline/internal/shortcut/offload/selftest"
)

// Provider is what forwards flows past the stack.
type Provider string

const (
	// Auto is the first of providers that works.
	Auto Provider = "auto"
	// Hardware is a flowtable of the kernel in the NICs, and in software between devices whose drivers have none.
	Hardware Provider = "flowtable-hardware"
	// Flowtable is a flowtable of the kernel in software.
	Flowtable Provider = "flowtable"
	// Cache is Beeline's flow cache.
	Cache Provider = "cache"
)

// providers are the choices of Auto, the best first.
var providers = []Provider{Hardware, Flowtable, Cache}

// testTime bounds the test of a provider. It takes some tenths of a second on an idle machine.
const testTime = 15 * time.Second

// choose tests the wanted providers by real flows until one works. It returns why the others do not; an empty provider
// if none does.
func (o *Offload) choose(ctx context.Context) (p Provider, why string) {
	wanted := providers
	if o.config.Provider != Auto {
		wanted = []Provider{o.config.Provider}
	}
	var all rejections
	for _, p := range wanted {
		if err := o.try(ctx, p); err != nil {
			all.add(p, err)
			continue
		}
		return p, all.String()
	}
	return "", all.String()
}

// rejections say why providers do not work; those with the same reason are one.
type rejections []struct{ providers, reason string }

func (r *rejections) add(p Provider, err error) {
	if n := len(*r); n > 0 && (*r)[n-1].reason == err.Error() {
		(*r)[n-1].providers += ", " + string(p)
		return
	}
	*r = append(*r, struct{ providers, reason string }{string(p), err.Error()})
}

func (r rejections) String() string {
	texts := make([]string, len(r))
	for i, one := range r {
		texts[i] = one.providers + ": " + one.reason
	}
	return strings.Join(texts, "; ")
}

func (o *Offload) try(ctx context.Context, p Provider) error {
	ctx, cancel := context.WithTimeout(ctx, testTime)
	defer cancel()
	switch p {
	case Cache:
		if o.config.NoFlowCache != "" {
			return errors.New(o.config.NoFlowCache)
		}
		return selftest.Run(ctx, &prover{wait: o.datapath.WaitForReaders, log: o.config.Log})
	case Hardware:
		if err := o.tryHardware(); err != nil {
			return err
		}
	}
	return selftest.Run(ctx, &flowtable.Prover{Log: o.config.Log})
}

// tryHardware creates a flowtable with the offload devices, since the devices of a self-test have no hardware, and
// reports why it has none of them.
func (o *Offload) tryHardware() error {
	devices, err := o.config.Devices()
	if err != nil {
		return err
	}
	r, err := o.flowtable.Apply(o.flowtableConfig(devices, Hardware))
	if err != nil {
		return err
	}
	if err := o.flowtable.Close(); err != nil {
		return err
	}
	if len(r.HardwareDevices) > 1 {
		return nil
	}
	reasons := []string{"fewer than two devices have it"}
	for _, d := range devices {
		if why := r.RefusedHardwareDevices[d.Name]; why != "" {
			reasons = append(reasons, d.Name+": "+why)
		}
	}
	return errors.New(strings.Join(reasons, ", "))
}

func (o *Offload) flowtableConfig(devices []Device, p Provider) flowtable.Config {
	c := flowtable.Config{Policy: o.config.Policy, Hardware: p == Hardware, Threshold: int(o.config.Threshold)}
	c.OnlyChosen = !o.config.IgnoreFilters && len(o.rules.findings()) > 0
	for _, d := range devices {
		c.Devices = append(c.Devices, d.Name)
	}
	return c
}
