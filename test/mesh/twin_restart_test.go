// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"bytes"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	restartConns = 8 // of each kind
	restartText  = 1 << 10
)

// A restart is the load of one pod while its proxy is killed and started again.
type restart struct {
	w      *world
	s      *sidecar
	ways   []twinWay
	idle   [][]tcpConn // by ways: all was answered when the proxy was killed
	unread [][]tcpConn // something was sent that the proxy had not read
	load   sync.WaitGroup
	stop   atomic.Bool
	// answered and failed count requests of the load. unexpected is the first error that is not of a connection
	// whose other end is gone.
	answered, failed atomic.Int64
	unexpected       atomic.Pointer[string]
}

// restartsUnderLoad kills the proxies of all twins while there is load, and starts them again: connections end in the
// same way, none can be opened meanwhile, and afterwards all work.
func (w *world) restartsUnderLoad(twins []*sidecar, mode twinMode) {
	w.t.Helper()
	var all []*restart
	for _, s := range twins {
		all = append(all, w.startLoad(s))
	}
	results := make([][]string, len(all))
	for i, r := range all {
		results[i] = r.kill()
	}
	for i, way := range all[0].ways {
		got, want := results[0][i], results[len(results)-1][i]
		if got != want {
			w.t.Errorf("%s, %s: the proxy is killed: %s; by Istio's rules %s", twins[0].name, way.name, got, want)
		}
	}
	for _, r := range all {
		r.startAgain()
	}
}

// startLoad opens the connections of a pod in all ways that the proxy serves.
func (w *world) startLoad(s *sidecar) *restart {
	w.t.Helper()
	r := &restart{w: w, s: s, ways: w.twinWays(s.proxy, 0)}
	for _, way := range r.ways {
		var idle, unread []tcpConn
		for range restartConns {
			idle, unread = append(idle, r.open(way)), append(unread, r.open(way))
			r.load.Go(func() { r.requests(way) })
		}
		r.idle, r.unread = append(r.idle, idle), append(r.unread, unread)
	}
	w.eventually("requests are answered", func() bool { return r.answered.Load() > 100 })
	return r
}

// dial opens a connection to the server that echoes.
func (r *restart) dial(way twinWay) (tcpConn, error) {
	from, to := way.ends(r.s)
	conn, err := r.w.applicationsOf(from).connect(netip.AddrPortFrom(to.Addr4, twinPort))
	if err == nil {
		_, err = conn.Write([]byte("e"))
	}
	return conn, err
}

// open returns a connection on which both programs have read often.
func (r *restart) open(way twinWay) tcpConn {
	r.w.t.Helper()
	conn, err := r.dial(way)
	for range readsUntilKnown {
		if err == nil {
			err = request(conn)
		}
	}
	r.w.must(err)
	return conn
}

// request sends some octets, which come back.
func request(conn tcpConn) error {
	text, got := bytes.Repeat([]byte("r"), restartText), make([]byte, restartText)
	_, err := conn.Write(text)
	if err == nil {
		_, err = io.ReadFull(conn, got)
	}
	if err == nil && !bytes.Equal(text, got) {
		err = fmt.Errorf("other octets come back")
	}
	return err
}

// requests go on, by another connection after each error.
func (r *restart) requests(way twinWay) {
	for !r.stop.Load() {
		conn, err := r.dial(way)
		for err == nil && !r.stop.Load() {
			if err = request(conn); err == nil {
				r.answered.Add(1)
			}
		}
		if conn != nil {
			conn.Close()
		}
		if err != nil {
			r.failed.Add(1)
			if !ended(err) {
				text := err.Error()
				r.unexpected.CompareAndSwap(nil, &text)
			}
			time.Sleep(time.Millisecond)
		}
	}
}

// kill stops the proxy, sends it something that it does not read, and kills it. It returns what programs see, by ways.
func (r *restart) kill() (results []string) {
	r.w.t.Helper()
	r.w.must(r.s.cmd.Process.Signal(syscall.SIGSTOP))
	time.Sleep(50 * time.Millisecond) // what was under way has arrived
	for _, conn := range slices.Concat(r.unread...) {
		_, err := conn.Write(make([]byte, restartText))
		r.w.must(err)
	}
	time.Sleep(50 * time.Millisecond)
	r.s.end()
	for i, way := range r.ways {
		results = append(results, fmt.Sprintf("idle connections end with %s, those with data unread with %s, new ones with %s",
			ends(r.idle[i]), ends(r.unread[i]), r.refused(way)))
	}
	return results
}

// ends says how connections end, by the first read and by writes after that.
func ends(all []tcpConn) (result string) {
	counts := map[string]int{}
	for _, conn := range all {
		_, err := conn.Read(make([]byte, 1))
		end := outcome(err)
		for range 20 { // the first write is answered by a RST
			if _, err = conn.Write([]byte("x")); err != nil {
				break
			}
			time.Sleep(time.Millisecond)
		}
		counts[end+" and then "+outcome(err)]++
		conn.Close()
	}
	return fmt.Sprint(counts)
}

// refused is how a connection fails while no proxy runs.
func (r *restart) refused(way twinWay) string {
	conn, err := r.dial(way)
	if err == nil {
		conn.Close()
	}
	return outcome(err)
}

// startAgain starts the proxy, and ends the load once it is served again without an error. Envoy ends connections in
// the first second after its start.
func (r *restart) startAgain() {
	w := r.w
	w.t.Helper()
	*r.s = *w.startProxy(r.s.proxy, r.s.pod.Name)
	more := func(n int64) func() bool {
		before := r.answered.Load()
		return func() bool { return r.answered.Load() > before+n }
	}
	w.eventually("requests are answered by the new proxy", more(200))
	time.Sleep(time.Second)
	lost := r.failed.Load()
	w.eventually("requests are answered after that", more(500))
	if n := r.failed.Load() - lost; n > 0 {
		w.t.Errorf("%s: %d requests fail while the proxy runs", r.s.pod.Name, n)
	}
	r.stop.Store(true)
	r.load.Wait()
	if text := r.unexpected.Load(); text != nil {
		w.t.Errorf("%s: a request fails in an unexpected way: %s", r.s.pod.Name, *text)
	}
}
