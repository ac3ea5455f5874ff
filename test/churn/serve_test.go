// SPDX-License-Identifier: Apache-2.0

package churn

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"

	"beeline.io/beeline/test/lab"
)

// partPod is the name of a pod's process: a server at many addresses and ports, each of which starts and stops
// separately. Its arguments are the pod's name and its addresses, IPv4 and IPv6 in turn. It reads requests from
// standard input, "start INDEX PORT" or "stop INDEX PORT" for the pair of addresses with that index, and
// answers each with a line, which is empty or an error.
const partPod = "beeline-churn-pod"

// place is where an endpoint is in its pod.
type place struct {
	index int // of the pair of addresses
	port  uint16
}

// podProcess is the process.
type podProcess struct {
	name      string
	addresses []netip.Addr
	running   map[place][]io.Closer
}

func servePod(args []string) {
	p := &podProcess{name: args[0], running: map[place][]io.Closer{}}
	for _, text := range args[1:] {
		p.addresses = append(p.addresses, netip.MustParseAddr(text))
	}
	requests := bufio.NewScanner(os.Stdin)
	for requests.Scan() {
		var verb string
		var at place
		_, err := fmt.Sscan(requests.Text(), &verb, &at.index, &at.port)
		switch {
		case err != nil:
		case verb == "start":
			err = p.start(at)
		case verb == "stop":
			p.stop(at)
		}
		if err != nil {
			p.stop(at)
			fmt.Println(err)
			continue
		}
		fmt.Println()
	}
	os.Exit(0)
}

func (p *podProcess) start(at place) error {
	for _, address := range p.addresses[2*at.index : 2*at.index+2] {
		here := netip.AddrPortFrom(address, at.port)
		listener, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(here))
		if err != nil {
			return err
		}
		p.running[at] = append(p.running[at], listener)
		go p.serveConnections(listener)
		socket, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(here))
		if err != nil {
			return err
		}
		p.running[at] = append(p.running[at], socket)
		go p.serveDatagrams(socket, here)
	}
	return nil
}

// stop closes the sockets for new requests. Connections stay open, as in a pod that drains.
func (p *podProcess) stop(at place) {
	for _, c := range p.running[at] {
		c.Close()
	}
	delete(p.running, at)
}

func (p *podProcess) serveConnections(l *net.TCPListener) {
	for {
		conn, err := l.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "accept:", err)
			continue
		}
		go func() {
			defer conn.Close()
			requests, answers := bufio.NewReaderSize(conn, 256), json.NewEncoder(conn)
			local, peer := conn.LocalAddr().(*net.TCPAddr).AddrPort(), conn.RemoteAddr().(*net.TCPAddr).AddrPort()
			for {
				line, err := requests.ReadString('\n')
				if err != nil {
					return
				}
				answers.Encode(lab.Answer{Pod: p.name, Peer: peer, Local: local, Payload: line[:len(line)-1]})
			}
		}()
	}
}

func (p *podProcess) serveDatagrams(socket *net.UDPConn, here netip.AddrPort) {
	request := make([]byte, 128)
	for {
		n, peer, err := socket.ReadFromUDPAddrPort(request)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "reading a datagram:", err)
			continue
		}
		answer, _ := json.Marshal(lab.Answer{Pod: p.name, Peer: peer, Local: here, Payload: string(request[:n])})
		socket.WriteToUDPAddrPort(answer, peer) // the client may be gone
	}
}
