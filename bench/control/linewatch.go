// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/test/node"
)

// A lineWatch notes when a text first appeared.
type lineWatch struct {
	want []byte
	seen chan time.Time
	text []byte
}

func (l *lineWatch) Write(p []byte) (int, error) {
	l.text = append(l.text, p...)
	if bytes.Contains(l.text, l.want) {
		select {
		case l.seen <- time.Now():
		default:
		}
		l.text = l.text[:0]
	}
	return len(p), nil
}

// await returns when an agent printed the text.
func (l *lineWatch) await(ctx context.Context, a *node.Agent) (time.Time, error) {
	timeout, look := time.After(harness.ChangeTimeout), time.NewTicker(time.Second)
	defer look.Stop()
	for {
		select {
		case at := <-l.seen:
			return at, nil
		case <-look.C:
			if unix.Kill(a.PID(), 0) != nil {
				return time.Time{}, fmt.Errorf("the agent has ended: %w", a.Wait())
			}
		case <-timeout:
			return time.Time{}, fmt.Errorf("the agent has not printed %q after %s", l.want, harness.ChangeTimeout)
		case <-ctx.Done():
			return time.Time{}, ctx.Err()
		}
	}
}
