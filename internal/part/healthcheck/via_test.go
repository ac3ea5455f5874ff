// SPDX-License-Identifier: Apache-2.0

package healthcheck

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"beeline.io/beeline/internal/cluster/service"
)

// X2, H3: the result of a probe by DSR is that of the frontend's path. With another port both paths must reach
// a server; at the frontend a refusal is enough. Failures of DSR name the frontend.
func TestAsksThroughAFrontend(t *testing.T) {
	const well, refuses, hangs = "", "refuses", "hangs"
	for _, test := range []struct {
		name           string
		otherPort      bool
		itself, behind string // the endpoint's own address, and the frontend
		why            string
	}{
		{"well", false, well, well, ""},
		{"its own address does not matter", false, refuses, well, ""},
		{"a black hole", false, well, hangs, "timeout: no connection within 500ms, through IPIP to 10.0.0.9:80"},
		{"refused behind the frontend", false, well, refuses, "connection refused, through IPIP to 10.0.0.9:80"},
		{"another port, well", true, well, well, ""},
		{"another port, and no listener at the serving one", true, well, refuses, ""},
		{"another port, a black hole", true, well, hangs, "timeout: no answer within 500ms, through IPIP to 10.0.0.9:80"},
		{"another port that refuses", true, refuses, well, "connection refused"},
	} {
		t.Run(test.name, func(t *testing.T) {
			n, target := newNetwork(), tcp(1)
			target.Via = service.Via{DSR: service.DSRIPIP, Frontend: netip.AddrPortFrom(addr(9), 80), Backend: target.Addr, To: target.Addr.Addr()}
			if test.otherPort {
				target.Addr = netip.AddrPortFrom(addr(1), 9000)
			}
			for at, how := range map[netip.Addr]string{addr(1): test.itself, addr(9): test.behind} {
				n.hangs[at] = how == hangs
				if how == refuses {
					n.set(at, refused)
				}
			}
			through := func(via service.Via) Dialer {
				return func(ctx context.Context, _ netip.AddrPort) (net.Conn, error) { return n.dial(ctx, via.Frontend) }
			}
			run(t, n, Options{Through: through}, func(t *testing.T, p *Prober, changes <-chan []Change) {
				go func() {
					for range changes {
					}
				}()
				p.SetTargets([]service.Target{target}, as(Unknown))
				time.Sleep(2 * time.Second)
				wantState(t, p, target, test.why == "", test.why)
				if s, _ := p.State(target); s.Why != test.why {
					t.Errorf("it says %q, want %q", s.Why, test.why)
				}
			})
		})
	}
}
