// SPDX-License-Identifier: Apache-2.0

package flowtable

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"beeline.io/beeline/internal/shortcut/offload/selftest"
	"beeline.io/beeline/test/needs"
)

var bothDevices = []string{selftest.ClientDevice, selftest.ServerDevice}

// patience is for the emulated machine, which is slow.
const patience = 60 * time.Second

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A rig is a world with a flowtable at its router.
type rig struct {
	*testing.T
	*selftest.World
	table *Flowtable
	ctx   context.Context
}

// newRig skips the test if the kernel has no flowtable.
func newRig(t *testing.T) *rig {
	t.Helper()
	needs.Kernel(t, needs.Flowtable)
	w, err := selftest.NewWorld()
	must(t, err)
	t.Cleanup(w.Close)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	r := &rig{t, w, New(w.Router, slog.New(slog.NewTextHandler(t.Output(), nil))), ctx}
	_, err = r.table.Apply(Config{Devices: bothDevices})
	must(t, err)
	t.Cleanup(func() {
		if err := r.table.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// start applies a configuration and follows the network. The threshold is few packets.
func (r *rig) start(c Config) Report {
	r.Helper()
	if c.Devices == nil {
		c.Devices = bothDevices
	}
	c.Threshold = 4
	report, err := r.table.Apply(c)
	must(r.T, err)
	r.run()
	return report
}

func (r *rig) run() {
	ctx, cancel := context.WithCancel(r.ctx)
	ended := make(chan error, 1)
	go func() { ended <- r.table.Run(ctx) }()
	r.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			r.Error(err)
		}
	})
	r.settled()
}

// settled waits until Run has replaced the table at its start.
func (r *rig) settled() {
	r.Helper()
	r.eventually("the table is replaced at the start", func() bool { return r.table.Status().Replaced["start"] > 0 })
}

func (r *rig) eventually(what string, ok func() bool) {
	r.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			r.Fatalf("not in time: %s", what)
		}
	}
}

// open opens a flow that is in the flowtable.
func (r *rig) open(k selftest.Kind) *selftest.Flow {
	r.Helper()
	f, err := r.Open(r.ctx, k)
	must(r.T, err)
	r.Cleanup(f.Close)
	r.taken(f)
	return f
}

func (r *rig) taken(f *selftest.Flow) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.ctx, 10*time.Second)
	defer cancel()
	must(r.T, r.AwaitShortcut(ctx, f, 4))
}

// notTaken sends more packets than the threshold.
func (r *rig) notTaken(f *selftest.Flow, why string) {
	r.Helper()
	must(r.T, f.Exchange(20))
	if short, err := r.Shortened(f); err != nil || short {
		r.Errorf("%s: shortened: %v, %v; want the stack: %s", f.Kind, short, err, why)
	}
}

// at runs netlink commands of a host.
func (r *rig) in(host interface{ Do(func() error) error }, f func() error) {
	r.Helper()
	must(r.T, host.Do(f))
}

func byName(name string) netlink.Link {
	l, err := netlink.LinkByName(name)
	if err != nil {
		panic(err) // a device of the test itself
	}
	return l
}

// Without flowtables the refusal says what the kernel lacks, and with its error.
func TestRefusalWithoutModule(t *testing.T) {
	if needs.Has(t, needs.Flowtable) {
		t.Skip("this kernel has flowtables")
	}
	err := selftest.Run(context.Background(), &Prover{Log: slog.Default()})
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "the kernel has no modules nf_flow_table_inet and nft_flow_offload") || !strings.Contains(err.Error(), "no such file or directory") {
		t.Errorf("the self-test of the flowtable: %v", err)
	}
}

// The self-test finds the flowtable good.
func TestSelfTest(t *testing.T) {
	newRig(t)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	begun := time.Now()
	if err := selftest.Run(ctx, &Prover{Log: slog.Default()}); err != nil {
		t.Error(err)
	}
	t.Logf("the self-test took %v", time.Since(begun))
}
