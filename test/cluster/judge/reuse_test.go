// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/test/lab"
)

var reuseFor = flag.Duration("reuse", 20*time.Second, "how long TestReusedPorts lasts")

// What TestReusedPorts sends: in each family, so many connections a second, from so many ports in turn. A port comes
// back after 8.3 s, to another Service, because the number of Services does not divide that of the ports.
const (
	reuseRate, reusePorts, firstReusedPort = 120, 1000, 20000
	reuseServices, portReuse               = 3, 8090
)

// reuse counts the connections of one side.
type reuse struct {
	mu                   sync.Mutex
	made, repeated, lost int
	first                error
}

func (r *reuse) String() string {
	return fmt.Sprintf("%d connections, %d with a repeated segment, %d failed", r.made, r.repeated, r.lost)
}

// A client reaches one backend by three NodePorts and uses its ports again while the backend, which closes first,
// has them in TIME_WAIT. Each connection is made at once, as with kube-proxy.
func TestReusedPorts(t *testing.T) {
	t.Parallel()
	p := New(t, beeline, Options{})
	j := &Judge{Pair: p}
	for n := range reuseServices {
		s := base(n, "a2")
		s.Type, s.Ports, s.External = "NodePort", "tcp", "Cluster"
		object, slices := s.Service(), s.EndpointSlices(p.Sides[0].Lab)
		for _, slice := range slices {
			slice.Ports[0].Port = new(int32(portReuse))
		}
		if err := j.createService(t.Context(), object, slices); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Await(t.Context()); err != nil {
		t.Fatal(err)
	}
	var counts [2]reuse
	var running sync.WaitGroup
	for i, side := range p.Sides {
		backend, node, client := side.Lab.Host("a2"), side.Lab.Host(judged), side.Lab.Host("client")
		for _, to := range []struct{ backend, node, client netip.Addr }{
			{backend.Addr4, node.Addr4, client.Addr4}, {backend.Addr6, node.Addr6, client.Addr6},
		} {
			closeFirst(t, backend, netip.AddrPortFrom(to.backend, portReuse))
			running.Go(func() { counts[i].load(t.Context(), client, to.client, to.node) })
		}
	}
	running.Wait()
	for i, side := range p.Sides {
		t.Logf("%s: %v", side.Name, &counts[i])
	}
	// A busy machine delays a segment now and then, on either side: not in equal numbers.
	peer, ours := &counts[0], &counts[1]
	if ours.repeated > peer.repeated {
		t.Logf("excused: %v by Beeline, and %v by kube-proxy", ours, peer)
	}
	if allowed := peer.repeated + ours.made/1000; ours.repeated > allowed || ours.lost > peer.lost {
		t.Errorf("Beeline: %v (the first failure: %v), kube-proxy: %v", ours, ours.first, peer)
	}
	if ours.made < 3*reusePorts { // of two families
		t.Errorf("in %v only %d connections: most ports came back never", *reuseFor, ours.made)
	}
}

// closeFirst serves connections: it reads, answers and closes.
func closeFirst(t *testing.T, host *lab.Host, at netip.AddrPort) {
	t.Helper()
	listener, err := host.Listen("tcp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed: the test has ended
			}
			go func() {
				defer conn.Close()
				if _, err := conn.Read(make([]byte, 16)); err == nil {
					conn.Write([]byte("bye"))
				}
			}()
		}
	}()
}

// load makes connections to the NodePorts of a node in turn.
func (r *reuse) load(ctx context.Context, client *lab.Host, from, to netip.Addr) {
	ctx, cancel := context.WithTimeout(ctx, *reuseFor)
	defer cancel()
	tick := time.NewTicker(time.Second / reuseRate)
	defer tick.Stop()
	var running sync.WaitGroup
	defer running.Wait()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		local := netip.AddrPortFrom(from, uint16(firstReusedPort+n%reusePorts))
		remote := netip.AddrPortFrom(to, uint16(firstNodePort+n%reuseServices))
		running.Go(func() {
			repeated, err := askOnce(client, local, remote)
			r.mu.Lock()
			defer r.mu.Unlock()
			r.made++
			if repeated > 0 {
				r.repeated++
			}
			if err != nil {
				r.lost++
				if r.first == nil {
					r.first = err
				}
			}
		})
	}
}

// askOnce makes a connection, reads to its end and returns how many segments the client has sent again.
func askOnce(client *lab.Host, local, remote netip.AddrPort) (repeated uint32, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	conn, err := client.DialWith(ctx, lab.DialOptions{Local: local}, "tcp", remote.String())
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := conn.Write([]byte("x")); err != nil {
		return 0, err
	}
	answer, err := io.ReadAll(conn)
	if err == nil && string(answer) != "bye" {
		err = fmt.Errorf("from %v to %v: the answer is %q", local, remote, answer)
	}
	if err != nil {
		return 0, err
	}
	info, err := tcpInfo(conn)
	if err != nil {
		return 0, err
	}
	return info.Total_retrans, nil
}

func tcpInfo(conn net.Conn) (info *unix.TCPInfo, err error) {
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return nil, err
	}
	if e := raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }); e != nil {
		return nil, e
	}
	return info, err
}
