// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/bpf/codec"
	"beeline.io/beeline/internal/cluster/service"
	"beeline.io/beeline/test/node"
)

// view reads single frontends from the pinned tables, as the programs do.
type view struct {
	frontends *ebpf.Map
	tables    *bpf.Tables
}

func openView(bpffs string) (*view, error) {
	tables, err := bpf.OpenTables(bpffs)
	if err != nil {
		return nil, err
	}
	frontends, err := ebpf.LoadPinnedMap(bpf.TablePath(bpffs, bpf.SockMapFrontends), nil)
	return &view{frontends, tables}, err
}

// has reports whether a frontend sends pods to a backend.
func (v *view) has(frontend netip.AddrPort, backend netip.Addr) (bool, error) {
	key := codec.FrontendKey(service.FrontendKey{Addr: frontend.Addr(), Port: frontend.Port(), Protocol: service.TCP})
	var row uint32
	if err := v.frontends.Lookup(key, &row); err != nil {
		return false, fmt.Errorf("look up %s: %w", frontend, err)
	}
	f, err := codec.LoadFrontend(v.tables, row)
	if err != nil {
		return false, err
	}
	for _, id := range codec.Slots(v.tables, f.Slots(service.FromPod)) {
		if v.tables.Backends.Load(id).Address.Addr() == backend {
			return true, nil
		}
	}
	return false, nil
}

// await waits until a frontend sends pods to a backend.
func (v *view) await(ctx context.Context, frontend netip.AddrPort, backend netip.Addr) error {
	for deadline := time.Now().Add(harness.ChangeTimeout); time.Now().Before(deadline); time.Sleep(50 * time.Microsecond) {
		has, err := v.has(frontend, backend)
		if has || err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return errors.New("the change is not in the tables after " + harness.ChangeTimeout.String())
}

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
