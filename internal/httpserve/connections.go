// SPDX-License-Identifier: Apache-2.0

package httpserve

import (
	"container/list"
	"net"
	"sync"
)

// maxConnections is how many connections a Connections has. Probes and scrapes are short and few.
const maxConnections = 128

// Connections bounds the open connections of servers, because each takes a file descriptor of the agent: if there is
// one more, the one that was accepted first is closed. So clients that keep many connections close their own.
type Connections struct {
	mu   sync.Mutex
	open list.List // *connection, in the order in which they were accepted
}

// NewConnections returns a Connections without connections.
func NewConnections() *Connections { return &Connections{} }

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
	of    *Connections
	place *list.Element // nil: it does not count any more
}

func (c *Connections) add(conn net.Conn) net.Conn {
	added := &connection{Conn: conn, of: c}
	var first *connection
	c.mu.Lock()
	if c.open.Len() >= maxConnections {
		first = c.open.Front().Value.(*connection)
		first.forget()
	}
	added.place = c.open.PushBack(added)
	c.mu.Unlock()
	if first != nil {
		first.Conn.Close()
	}
	return added
}

// forget stops counting a connection. The caller holds the lock.
func (c *connection) forget() {
	if c.place != nil {
		c.of.open.Remove(c.place)
		c.place = nil
	}
}

// Close closes the connection. It may be called more than once.
func (c *connection) Close() error {
	c.of.mu.Lock()
	c.forget()
	c.of.mu.Unlock()
	return c.Conn.Close()
}
