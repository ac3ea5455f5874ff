// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"beeline.io/beeline/test/lab"
)

// R30: 50 MB arrive intact each way, with a backend on this node and with one on another, while the Service's
// endpoints change, that one among them.
func TestTransferWhileEndpointsChange(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := borrowWorld(t, "--edge-mode="+mode)
		own := addresses(w.Host("node-a"), nodePort)
		var transfers sync.WaitGroup
		for i, pod := range []string{"a1", "b1"} {
			w.apply("web", objects(w.public(pod))...)
			conn := w.open("tcp", own[i])
			transfers.Go(func() {
				if err := transfer(conn, pod, 50<<20); err != nil {
					t.Errorf("to %s at %s: %v", pod, own[i], err)
				}
			})
		}
		done := make(chan struct{})
		go func() { transfers.Wait(); close(done) }()
		for n := 0; ; n++ {
			select {
			case <-done:
				return
			default:
				w.apply("web", objects(w.public([][]string{{"a1", "b1"}, {"b2"}, {"a2", "b3"}, {}}[n%4]...))...)
			}
		}
	})
}

// transfer sends so many octets to a line server, which sends them back, and compares.
func transfer(conn net.Conn, pod string, size int) error {
	if err := conn.SetDeadline(time.Now().Add(2 * patience)); err != nil {
		return err
	}
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
	block := make([]byte, 48<<10)
	for i := range block {
		block[i] = letters[rand.N(len(letters))]
	}
	sent, received := sha256.New(), sha256.New()
	lines := size / len(block)
	failed := make(chan error, 1)
	go func() {
		for range lines {
			block = append(block[1:], block[0]) // each line differs
			sent.Write(block)
			if _, err := conn.Write(append(block, '\n')); err != nil {
				failed <- err
				return
			}
		}
		failed <- nil
	}()
	begin := []byte(`"payload":"`)
	answers := newLines(conn)
	for range lines {
		line, err := answers.next()
		if err != nil {
			return err
		}
		at := bytes.Index(line, begin)
		if at < 0 || !bytes.Contains(line[:at], []byte(`"pod":"`+pod+`"`)) {
			return fmt.Errorf("answer %.100q", line)
		}
		received.Write(bytes.TrimSuffix(line[at+len(begin):], []byte("\"}\n")))
	}
	if err := <-failed; err != nil {
		return err
	}
	if a, b := sent.Sum(nil), received.Sum(nil); !bytes.Equal(a, b) {
		return fmt.Errorf("sent %x, received %x", a, b)
	}
	return nil
}

// lines reads line by line.
type lines struct {
	from   io.Reader
	buffer []byte
}

func newLines(from io.Reader) *lines { return &lines{from: from} }

func (l *lines) next() ([]byte, error) {
	for scanned := 0; ; {
		if i := bytes.IndexByte(l.buffer[scanned:], '\n'); i >= 0 {
			line := l.buffer[:scanned+i+1]
			l.buffer = l.buffer[scanned+i+1:]
			return line, nil
		}
		scanned = len(l.buffer)
		chunk := make([]byte, 64<<10)
		n, err := l.from.Read(chunk)
		l.buffer = append(l.buffer, chunk[:n]...)
		if err != nil && n == 0 {
			return nil, err
		}
	}
}

// R37: no connection is lost while the agent is killed and replaced, twice.
func TestAgentIsKilledUnderLoad(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := borrowWorld(t, "--edge-mode="+mode)
		w.apply("web", objects(w.public("a1", "b1"))...)
		ended := w.load(0)
		for range 2 {
			w.must(w.agent.Kill())
			w.must(w.agent.Start())
		}
		ended()
	})
}

// load has clients connect again and again, and others stay, until ended is called. None may fail. Each pauses
// between its requests.
func (w *world) load(pause time.Duration) (ended func()) {
	return w.loadAt(pause, addresses(w.Host("node-a"), nodePort))
}

// loadAt is load at a pair of addresses, one of each family.
func (w *world) loadAt(pause time.Duration, at []netip.AddrPort) (ended func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	var clients sync.WaitGroup
	var asked [4]int
	for i := range asked {
		to, network := at[i%2], []string{"tcp", "udp"}[i/2]
		long := w.open("tcp", to)
		clients.Go(func() {
			for ; ctx.Err() == nil; asked[i]++ {
				time.Sleep(pause)
				if _, err := w.ask(network, to); err != nil {
					w.t.Errorf("%s to %s, request %d: %v", network, to, asked[i], err)
					return
				}
				if _, err := lab.Ask(w.t.Context(), long, "hello"); err != nil {
					w.t.Errorf("on a connection to %s, request %d: %v", to, asked[i], err)
					return
				}
			}
		})
	}
	return func() {
		cancel()
		clients.Wait()
		for i, n := range asked {
			if n == 0 {
				w.t.Errorf("client %d has sent no request", i)
			}
		}
	}
}

// A node's firewall that drops packets with the conntrack state "invalid" does not affect clients' connections:
// it sees both directions of each, or neither.
func TestFirewallDropsInvalid(t *testing.T) {
	inModes(t, func(t *testing.T, mode string) {
		w := borrowWorld(t, "--edge-mode="+mode)
		w.firewall(`table inet beeline_test {
	chain in { type filter hook input priority 0; ct state invalid counter drop; }
	chain out { type filter hook output priority 0; ct state invalid counter drop; }
	chain on { type filter hook forward priority 0; ct state invalid counter drop; }
}`)
		w.apply("web", objects(w.public("a1", "b1"))...)
		for _, to := range addresses(w.Host("node-a"), nodePort) {
			w.wantServed("tcp", to, "a1", "b1")
			w.wantServed("udp", to, "a1", "b1")
		}
		for i, pod := range []string{"a1", "b1"} {
			w.apply("web", objects(w.public(pod))...)
			to := addresses(w.Host("node-a"), nodePort)[i]
			if err := transfer(w.open("tcp", to), pod, 5<<20); err != nil {
				t.Errorf("to %s at %s: %v", pod, to, err)
			}
		}
		w.apply("web", objects(w.public())...)
		for _, to := range addresses(w.Host("node-a"), nodePort) {
			w.wantRefused("tcp", to)
			w.wantRefused("udp", to)
		}
	})
}

// firewall loads rules for nft on the agent's node until the end of the test.
func (w *world) firewall(rules string) {
	w.t.Helper()
	nft := w.agent.Host.Command(w.t.Context(), "nft", "-f", "-")
	nft.Stdin = strings.NewReader(rules)
	if out, err := nft.CombinedOutput(); err != nil {
		w.t.Fatalf("nft: %v\n%s", err, out)
	}
	w.t.Cleanup(func() { w.must(w.agent.Host.Command(context.Background(), "nft", "flush", "ruleset").Run()) })
}
