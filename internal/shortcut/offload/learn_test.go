// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"beeline.io/beeline/internal/conntrack/kernelct"
	"beeline.io/beeline/internal/node/netns"
	"beeline.io/beeline/internal/shortcut/offload/selftest"
)

// A flow is stored only as it was seen since the last change of the node: a candidate from before may have the next hop
// of a route that is gone. The kernel's conntrack does not know the flows of this test, so what is to be stored fails.
func TestCandidatesOfAnotherEpoch(t *testing.T) {
	const now, before = 7, 6
	for _, c := range []struct {
		name      string
		has       *Entry // of the same packets
		candidate uint32 // its epoch
		moved     bool   // it has another destination
		stays     bool   // the entry is kept
		stored    bool   // the candidate is to be stored
	}{
		{"a new flow", nil, now, false, false, true},
		{"a new flow, seen before the change", nil, before, false, false, false},
		{"a flow that is in the cache", &Entry{Epoch: now}, now, false, true, false},
		{"one with another destination by now", &Entry{Epoch: now}, now, true, false, true},
		{"one that is in the cache from before the change", &Entry{Epoch: before}, now, false, false, true},
		{"both from before the change", &Entry{Epoch: before}, before, false, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &FlowCache{cache: smallCache(t), ended: map[string]uint64{}, kernel: emptyConntrack(t), refused: refusals{}}
			f.cache.control().Epoch = now
			e := entry(1, 0)
			e.Key.Tuple.Protocol, e.Epoch = 6, c.candidate
			if c.has != nil {
				old := *e
				old.Epoch = c.has.Epoch
				if err := f.cache.add(&old); err != nil {
					t.Fatal(err)
				}
			}
			if c.moved {
				e.To.DestinationPort++
			}
			why := f.take(e)
			if stored := strings.Contains(why, "conntrack"); stored != c.stored || !stored && why != "" {
				t.Errorf("refused because of %q; it was to be stored: %v", why, c.stored)
			}
			if stays := f.cache.get(e.Key) != nil; stays != c.stays {
				t.Errorf("the entry is in the cache: %v, want %v", stays, c.stays)
			}
		})
	}
}

// emptyConntrack opens the conntrack of a network namespace without flows.
func emptyConntrack(t *testing.T) (table *kernelct.Table) {
	t.Helper()
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	if err := ns.Do(func() (err error) { table, err = kernelct.Open(); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { table.Close() })
	return table
}

// A TCP connection that one side has closed is not learned, however many packets it still has: its next FIN or RST ends
// it, and until then the kernel's conntrack has another timeout than the flow cache would set. Learning of an open
// connection afterwards shows that the candidates before it were considered.
func TestClosingConnectionsAreNotLearned(t *testing.T) {
	const threshold, segments = 10, 100
	w, err := selftest.NewWorld()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	p := &prover{wait: func() error { return nil }, log: slog.New(slog.DiscardHandler)}
	if err := p.Attach(w.Router, []string{selftest.ClientDevice, selftest.ServerDevice}, threshold); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Detach() })
	for _, c := range []struct {
		name          string
		client, after bool // the client closes its side, after some segments
		learned       bool
	}{
		{"closed by the client", true, false, false},
		{"closed by the server", false, false, false},
		{"open", false, true, true},
	} {
		client, server := connectedBy(t, w)
		sender, receiver := server, client
		if !c.client && !c.after {
			sender, receiver = client, server
		}
		if !c.after {
			receiver.CloseWrite()
			if n, err := sender.Read(make([]byte, 1)); n != 0 || err == nil {
				t.Fatalf("%s: the end is not seen: %d bytes, %v", c.name, n, err)
			}
		}
		exchanged(t, sender, receiver, segments)
		port := client.LocalAddr().(*net.TCPAddr).AddrPort().Port()
		if !c.learned {
			if _, n := learnedOf(p.flows, port); n > 0 {
				t.Errorf("a connection %s: %d directions are learned after %d segments", c.name, n, segments)
			}
			continue
		}
		for end := time.Now().Add(20 * time.Second); ; exchanged(t, sender, receiver, 1) {
			proposed, n := learnedOf(p.flows, port)
			if n > 0 && proposed == n {
				break
			}
			if n > 0 || time.Now().After(end) {
				t.Fatalf("a connection %s: %d directions are learned; of all connections %d were proposed", c.name, n, proposed)
			}
		}
	}
}

// connectedBy returns the ends of a connection that the router forwards without NAT.
func connectedBy(t *testing.T, w *selftest.World) (client, server *net.TCPConn) {
	t.Helper()
	to := netip.AddrPortFrom(selftest.ServerAddresses[0].Addr(), 0)
	var listener net.Listener
	if err := w.Server.Do(func() (err error) { listener, err = net.Listen("tcp4", to.String()); return err }); err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if err := w.Client.Do(func() error {
		c, err := net.Dial("tcp4", listener.Addr().String())
		if err == nil {
			client = c.(*net.TCPConn)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	accepted, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); accepted.Close() })
	return client, accepted.(*net.TCPConn)
}

// exchanged sends segments one after the other: each is received before the next is sent.
func exchanged(t *testing.T, from, to *net.TCPConn, segments int) {
	t.Helper()
	for range segments {
		_, err := from.Write([]byte{1})
		if err == nil {
			_, err = to.Read(make([]byte, 1))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// learnedOf counts the directions in the cache of the flow of a client's port, and those of all flows that the programs
// have proposed, also if they were refused or have left the cache.
func learnedOf(f *FlowCache, port uint16) (proposed, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cache.each(func(e *Entry) {
		if e.Key.Tuple.From().Port() == port || e.Key.Tuple.To().Port() == port {
			n++
		}
	})
	return int(f.learned) + len(f.refused), n
}
