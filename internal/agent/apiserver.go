// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/part/healthcheck"
)

// apiServer holds the addresses at which the agent reaches the API server.
type apiServer struct {
	mu sync.Mutex
	// known holds the addresses of the last connections, the latest last.
	known []netip.Addr
}

// knownServers bounds apiServer.known. A name may have several addresses, and old ones may no longer belong to
// the server.
const knownServers = 8

// dial connects to the address itself, even if it belongs to a Service. If the tables translated it to an API
// server that is gone, the agent could never learn of another; and anyone who may create a Service could
// intercept the connection.
func (s *apiServer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := healthcheck.Marked(net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}, uint32(bpf.AgentMark))
	conn, err := d.DialContext(ctx, network, address)
	if err == nil {
		s.note(conn.RemoteAddr())
	}
	return conn, err
}

func (s *apiServer) note(remote net.Addr) {
	tcp, ok := remote.(*net.TCPAddr)
	if !ok {
		return
	}
	addr := tcp.AddrPort().Addr().Unmap().WithZone("")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = append(slices.DeleteFunc(s.known, func(a netip.Addr) bool { return a == addr }), addr)
	s.known = s.known[max(0, len(s.known)-knownServers):]
}

func (s *apiServer) addresses() []netip.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.known)
}
