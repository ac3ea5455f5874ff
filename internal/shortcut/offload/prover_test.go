// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"beeline.io/beeline/internal/node/netns"
	"beeline.io/beeline/internal/shortcut/offload/selftest"
)

// TestSelfTest: the self-test passes with the flow cache, and fails without one: packets that still pass the stack
// are no shortcut.
func TestSelfTest(t *testing.T) {
	wait := func() error { return nil }
	ctx, cancel := context.WithTimeout(context.Background(), testTime)
	defer cancel()
	if err := selftest.Run(ctx, &prover{wait: wait, log: slog.New(slog.DiscardHandler)}); err != nil {
		t.Errorf("the flow cache: %v", err)
	}
	if err := selftest.Run(context.Background(), idle{}); err == nil || !strings.Contains(err.Error(), "still pass the stack") {
		t.Errorf("nothing: %v; want packets that still pass the stack", err)
	}
}

// idle is a provider that does nothing.
type idle struct{}

func (idle) Attach(*netns.Namespace, []string, int) error { return nil }
func (idle) Detach() error                                { return errors.ErrUnsupported }
