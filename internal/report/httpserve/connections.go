// SPDX-License-Identifier: Apache-2.0

package httpserve

import (
	"container/list"
	"net"
	"net/netip"
	"sync"
)

// defaultConnections is how many open connections a Server without Connections has at most.
const defaultConnections = 128

// Connections bounds the open connections of servers, because each takes a file descriptor of the agent. If there is
// one more, a connection is closed: of the client that has most, the one that was accepted first. So a client that
// keeps many connections closes its own. A client is an IPv4 address, or a /64 of IPv6.
type Connections struct {
	most int

	mu   sync.Mutex
	open list.List // *connection, in the order in which they were accepted
	of   map[netip.Prefix]int
}

// NewConnections returns a Connections without connections, which has at most so many, and at least one.
func NewConnections(most int) *Connections {
	return &Connections{most: max(most, 1), of: map[netip.Prefix]int{}}
}

// bound returns a listener whose connections count.
func (c *Connections) bound(l net.Listener) net.Listener { return boundListener{l, c} }

type boundListener struct {
	net.Listener
	connections *Connections
}

func (l boundListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.connections.add(conn), nil
}

// connection is an open connection of a Connections.
type connection struct {
	net.Conn
	set    *Connections
	client netip.Prefix
	place  *list.Element // nil: it does not count any more
}

// clientOf returns whose connection it is.
func clientOf(conn net.Conn) netip.Prefix {
	remote, _ := netip.ParseAddrPort(conn.RemoteAddr().String())
	addr := remote.Addr().Unmap().WithZone("")
	if addr.Is6() {
		return netip.PrefixFrom(addr, 64).Masked()
	}
	return netip.PrefixFrom(addr, addr.BitLen())
}

func (c *Connections) add(conn net.Conn) net.Conn {
	added := &connection{Conn: conn, set: c, client: clientOf(conn)}
	var closed *connection
	c.mu.Lock()
	added.place = c.open.PushBack(added)
	c.of[added.client]++
	if c.open.Len() > c.most {
		closed = c.surplus()
		closed.forget()
	}
	c.mu.Unlock()
	if closed != nil {
		closed.Conn.Close()
	}
	return added
}

// surplus returns the connection to close. The caller holds the lock.
func (c *Connections) surplus() (first *connection) {
	for e := c.open.Front(); e != nil; e = e.Next() {
		if conn := e.Value.(*connection); first == nil || c.of[conn.client] > c.of[first.client] {
			first = conn
		}
	}
	return first
}

// forget stops counting a connection. The caller holds the lock.
func (c *connection) forget() {
	if c.place == nil {
		return
	}
	c.set.open.Remove(c.place)
	c.place = nil
	if c.set.of[c.client]--; c.set.of[c.client] == 0 {
		delete(c.set.of, c.client)
	}
}

// Close closes the connection. It may be called more than once.
func (c *connection) Close() error {
	c.set.mu.Lock()
	c.forget()
	c.set.mu.Unlock()
	return c.Conn.Close()
}

// CloseWrite ends the response of a connection whose request has not been read to its end, as net/http does.
func (c *connection) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
