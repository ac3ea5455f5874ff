// SPDX-License-Identifier: Apache-2.0

package selftest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"beeline.io/beeline/internal/node/netns"
)

// idle is a provider that takes no flow.
type idle struct {
	attached, detached int
	fails              error
}

func (p *idle) Attach(*netns.Namespace, []string, int) error { p.attached++; return p.fails }
func (p *idle) Detach() error                                { p.detached++; return nil }

// A provider whose flows pass the stack is not proven, and neither is one that cannot be attached. It is detached,
// and the test ends in time.
func TestProviderThatTakesNoFlow(t *testing.T) {
	p := &idle{}
	begun := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	err := Run(ctx, p)
	if err == nil || !strings.Contains(err.Error(), "tcp over IPv4 without NAT: after") || !strings.Contains(err.Error(), "still pass the stack") {
		t.Errorf("the self-test of a provider that does nothing: %v", err)
	}
	if p.attached != 1 || p.detached != 1 {
		t.Errorf("attached %d times, detached %d times", p.attached, p.detached)
	}
	if took := time.Since(begun); took > 2*time.Second {
		t.Errorf("it took %v", took)
	}
	p = &idle{fails: errors.New("refused")}
	if err := Run(context.Background(), p); !errors.Is(err, p.fails) || p.detached != 0 {
		t.Errorf("the self-test of a provider that refuses: %v, detached %d times", err, p.detached)
	}
}

// The stack alone forwards each kind of flow without damage: what the self-test finds is the provider's.
func TestPlainStack(t *testing.T) {
	w, err := NewWorld()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for _, k := range w.Kinds(Plain, DNAT, SNAT, Both) {
		f, err := w.Open(ctx, k)
		if err != nil {
			t.Error(err)
			continue
		}
		short, err := w.Shortened(f)
		if err != nil || short {
			t.Errorf("%s: shortened: %v, %v", k, short, err)
		}
		if k.Network == "tcp" {
			err = errors.Join(f.Stream(streamed), w.finish(f))
		}
		if err != nil {
			t.Error(err)
		}
		f.Close()
	}
}

// A stream with an octet changed, missing or repeated is not the one that was sent.
func TestEqual(t *testing.T) {
	const octets = 200_000
	want := func() *strings.Reader {
		var b strings.Builder
		buffer := make([]byte, 4096)
		for r := pattern(octets); ; {
			n, err := r.Read(buffer)
			b.Write(buffer[:n])
			if err != nil {
				return strings.NewReader(b.String())
			}
		}
	}
	if err := equal(want(), pattern(octets)); err != nil {
		t.Error(err)
	}
	text := make([]byte, octets)
	if _, err := want().Read(text); err != nil {
		t.Fatal(err)
	}
	for name, damaged := range map[string]string{
		"changed":  string(text[:70_000]) + string(text[70_000]^1) + string(text[70_001:]),
		"missing":  string(text[:70_000]) + string(text[71_000:]),
		"repeated": string(text[:80_000]) + string(text[70_000:190_000]),
	} {
		if equal(strings.NewReader(damaged), pattern(octets)) == nil {
			t.Errorf("a stream with octets %s is taken for the same", name)
		}
	}
}
