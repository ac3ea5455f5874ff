// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/probe"
)

// apiServer is where the agent reaches the API server.
type apiServer struct {
	mu sync.Mutex
	// known are the addresses of the last connections, the latest one last.
	known []netip.Addr
}

// knownServers bounds apiServer.known: a name can stand for several addresses, and those
// that it had long ago are not the server's any more.
const knownServers = 8

// dial connects to the address itself, also where it is a Service's: an agent whose tables
// lead to an API server that is gone could not learn of another one, and whoever may create
// a Service could stand between it and the API server.
func (s *apiServer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := probe.Marked(net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}, uint32(datapath.AgentMark))
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
