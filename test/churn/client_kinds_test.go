// SPDX-License-Identifier: Apache-2.0

package churn

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// long returns a function that sends requests on one connection that stays open during the changes (R30). It is
// replaced from time to time.
func (c *clients) long() func(*rand.Rand) (int, time.Duration, error) {
	var conn net.Conn
	var s *service
	return func(random *rand.Rand) (int, time.Duration, error) {
		var err error
		if conn == nil {
			s = c.anyService(random)
			if conn, err = c.dial("tcp", s); err != nil {
				conn = nil
				return 0, 0, err
			}
			conn.(*net.TCPConn).SetLinger(0)
		}
		payload := fmt.Sprint(random.Uint32())
		answer, err := ask(conn, payload)
		if err != nil {
			err = s.failed("request on an open connection", err)
		} else if answer.Payload != payload || answer.Local.Port() != s.port {
			err = fmt.Errorf("%s: asked %q on an open connection and got %+v", s.name, payload, answer)
		} else {
			err = wantPeer(conn, s.ips[c.family])
		}
		if err != nil || random.IntN(500) == 0 {
			conn.Close()
			conn = nil
		}
		return 0, 0, err
	}
}

// unconnected returns a function that sends requests to all Services from one unconnected UDP socket.
func (c *clients) unconnected() (func(*rand.Rand) (int, time.Duration, error), error) {
	network, address := "udp4", "0.0.0.0:0"
	if c.family == 1 {
		network, address = "udp6", "[::]:0"
	}
	socket, err := c.host.ListenPacket(network, address)
	if err != nil {
		return nil, err
	}
	return func(random *rand.Rand) (again int, late time.Duration, err error) {
		s, payload := c.anyService(random), fmt.Sprint(random.Uint32())
		for ; again < tries; again++ {
			asked := time.Now()
			socket.SetReadDeadline(asked.Add(tryTimeout))
			if _, err = socket.WriteTo([]byte(payload), net.UDPAddrFromAddrPort(s.ips[c.family])); err != nil {
				return again, 0, s.failed("sending a datagram", err)
			}
			var r received
			if r, err = receive(socket, payload); err == nil {
				late, err = c.checkUDP(s, r, payload, asked)
				return again, late, err
			}
		}
		return again - 1, 0, s.failed("request from an unconnected UDP socket", err)
	}, nil
}

// connected returns a function that sends requests to one Service after the other, each from a connected UDP
// socket, which is used several times. One that fails is replaced.
func (c *clients) connected() func(*rand.Rand) (int, time.Duration, error) {
	var conn net.Conn
	var s *service
	leave := func() {
		if conn != nil {
			conn.Close()
		}
		conn = nil
	}
	return func(random *rand.Rand) (again int, late time.Duration, err error) {
		if conn != nil && random.IntN(100) == 0 {
			leave()
		}
		if conn == nil {
			s = c.anyService(random)
		}
		payload := fmt.Sprint(random.Uint32())
		var all []error
		for range tries {
			if conn == nil {
				if conn, err = c.dial("udp", s); err != nil {
					conn = nil
					return again, 0, err
				}
			}
			asked := time.Now()
			conn.SetDeadline(asked.Add(tryTimeout))
			var r received
			if _, err = conn.Write([]byte(payload)); err == nil {
				r, err = receive(conn.(net.PacketConn), payload)
			}
			if err == nil {
				late, err = c.checkUDP(s, r, payload, asked)
				peer := wantPeer(conn, s.ips[c.family])
				if errors.Is(peer, unix.ENOTCONN) { // its endpoint was removed after the reply
					leave()
					peer = nil
				}
				return again, late, errors.Join(err, peer)
			}
			all = append(all, err)
			leave()
			if errors.Is(err, os.ErrDeadlineExceeded) { // else its endpoint was removed, which ends the socket
				again++
			}
		}
		return again, 0, s.failed("request from connected UDP sockets", errors.Join(all...))
	}
}
