// SPDX-License-Identifier: Apache-2.0

package terminate

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/datapath"
	"beeline.io/beeline/internal/netns"
)

// A world has stale sockets in one namespace, ends them as the kernel does, and
// tells when it was swept. Looking takes some time.
type world struct {
	mu       sync.Mutex
	udp, tcp []datapath.StaleSocket
	takes    time.Duration
	fails    error
	serving  map[datapath.Connection]bool
	sweeps   []time.Duration // since begin
	tcpLooks int
	resets   []time.Duration
	begin    time.Time
}

func (w *world) UDP() ([]datapath.StaleSocket, error) {
	time.Sleep(w.takes)
	w.mu.Lock()
	defer w.mu.Unlock()
	found := w.udp
	w.udp = nil
	if len(found) > 0 || w.fails != nil {
		return found, w.fails
	}
	w.sweeps = append(w.sweeps, time.Since(w.begin))
	return nil, nil
}

func (w *world) TCP(doomed ...uint64) (found []datapath.StaleSocket, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tcpLooks++
	left := w.tcp[:0]
	for _, s := range w.tcp {
		if w.serving[s.Connection()] {
			left = append(left, s)
			continue
		}
		if slices.Contains(doomed, s.Cookie) {
			s.Ended = 1
			w.resets = append(w.resets, time.Since(w.begin))
		} else {
			left = append(left, s)
		}
		found = append(found, s)
	}
	w.tcp = slices.Clone(left)
	return found, nil
}

func (w *world) serves(c datapath.Connection) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.serving[c]
}

// run has a job for the world until the test's end, inside a bubble.
func (w *world) run(t *testing.T, config Config, method Method) *Job {
	t.Helper()
	w.begin, w.serving = time.Now(), map[datapath.Connection]bool{}
	config.Serves, config.Log = w.serves, slog.New(slog.DiscardHandler)
	j := newJob(config, method, w, "", nil)
	j.namespaces = func() iter.Seq2[*netns.Namespace, error] {
		return func(yield func(*netns.Namespace, error) bool) {
			ns, err := netns.Current()
			if err == nil {
				defer ns.Close()
			}
			yield(ns, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- j.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return j
}

func stale(protocol uint8, cookie uint64) datapath.StaleSocket {
	s := datapath.StaleSocket{Cookie: cookie, Protocol: protocol}
	s.Service.Bytes = netip.MustParseAddr("10.96.0.1").As16()
	s.Backend.Bytes = netip.MustParseAddr("10.10.1.1").As16()
	return s
}

// swept is when sweeps ended that found nothing more.
func (w *world) swept() []time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.sweeps)
}

func (w *world) tcpLooked() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.tcpLooks
}

// sleep lets the job do what it does in a time.
func sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// One change is one sweep at once and one a second later, which finds whoever
// was connecting.
func TestJobFollowsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{udp: []datapath.StaleSocket{stale(unix.IPPROTO_UDP, 1)}}
		j := w.run(t, Config{}, Iterator)
		j.Changed(true, false)
		synctest.Wait()
		if st := j.Status(); st.EndedUDP != 1 || !st.Pending {
			t.Errorf("after the change: %+v", st)
		}
		w.mu.Lock()
		w.udp = []datapath.StaleSocket{stale(unix.IPPROTO_UDP, 2)}
		w.mu.Unlock()
		sleep(time.Hour)
		if want := []time.Duration{0, time.Second}; !slices.Equal(w.swept(), want) {
			t.Errorf("sweeps at %v, want %v", w.swept(), want)
		}
		if st := j.Status(); st.EndedUDP != 2 || st.Pending || st.Sweeps != 2 {
			t.Errorf("at the end: %+v", st)
		}
	})
}

// Constant change costs at most a fifth of a CPU, and the last change has its
// sweeps.
func TestJobRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{takes: 100 * time.Millisecond}
		j := w.run(t, Config{}, Iterator)
		for range 1000 {
			j.Changed(true, false)
			sleep(10 * time.Millisecond)
		}
		if busy := time.Duration(len(w.swept())) * w.takes; busy > 2*time.Second+w.takes {
			t.Errorf("of 10 s of change %v were sweeps", busy)
		}
		if len(w.swept()) < 19 {
			t.Errorf("in 10 s there were %d sweeps of 0.1 s", len(w.swept()))
		}
		last := time.Since(w.begin)
		sleep(time.Hour)
		swept := w.swept()
		if swept[len(swept)-1] < last-10*time.Millisecond+followUp {
			t.Errorf("the last change was at %v, the last sweep at %v", last, swept[len(swept)-1])
		}
	})
}

// Neither protocol keeps the other from its sweeps.
func TestJobTakesProtocolsInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{takes: 100 * time.Millisecond}
		j := w.run(t, Config{TCPDrain: time.Minute}, Iterator)
		for range 1000 {
			j.Changed(true, true)
			sleep(10 * time.Millisecond)
		}
		if tcp := w.tcpLooked(); len(w.swept()) < 8 || tcp < 8 {
			t.Errorf("in 10 s of change of both there were %d sweeps for UDP, %d for TCP", len(w.swept()), tcp)
		}
	})
}

// A change while a sweep is going on is not lost.
func TestJobTakesChangesDuringASweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{takes: 5 * time.Second}
		j := w.run(t, Config{}, Iterator)
		j.Changed(true, false)
		time.Sleep(4 * time.Second)
		j.Changed(true, false)
		sleep(time.Hour)
		if want := []time.Duration{5 * time.Second, 30 * time.Second}; !slices.Equal(w.swept(), want) {
			t.Errorf("sweeps end at %v, want %v", w.swept(), want)
		}
	})
}

// What fails is tried again after 1 s, 2 s, 4 s and so on until it succeeds.
func TestJobTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{fails: errors.New("no memory")}
		j := w.run(t, Config{}, Iterator)
		j.Changed(true, false)
		sleep(time.Minute)
		if st := j.Status(); st.LastError == "" || !st.Pending || st.Sweeps < 5 || st.Sweeps > 8 {
			t.Errorf("after a minute of failures: %+v", st)
		}
		w.mu.Lock()
		w.fails = nil
		w.mu.Unlock()
		sleep(time.Minute)
		if st := j.Status(); st.LastError != "" || st.Pending || len(w.swept()) != 1 {
			t.Errorf("after a success: %+v", st)
		}
		w.mu.Lock()
		w.fails = errors.New("no memory")
		w.mu.Unlock()
		j.Changed(true, false)
		synctest.Wait()
		j.mu.Lock()
		defer j.mu.Unlock()
		if j.udp.retry != firstRetry {
			t.Errorf("after another failure the next attempt is in %v, want %v", j.udp.retry, firstRetry)
		}
	})
}

// R30: without a drain time nobody even looks at TCP.
func TestJobLeavesTCPAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{tcp: []datapath.StaleSocket{stale(unix.IPPROTO_TCP, 1)}}
		j := w.run(t, Config{}, Iterator)
		j.Changed(true, true)
		sleep(time.Hour)
		if w.tcpLooked() != 0 || len(w.swept()) != 2 {
			t.Errorf("TCP was looked at %d times, UDP swept %d times", w.tcpLooked(), len(w.swept()))
		}
	})
}

// With a drain time a connection is reset when its backend has not served for so
// long: from when it was first found, and anew if it served in between.
func TestJobDrainsTCP(t *testing.T) {
	const drain = time.Minute
	first := stale(unix.IPPROTO_TCP, 1)
	backend := first.Connection()
	for _, test := range []struct {
		name string
		then func(w *world, j *Job)
		want []time.Duration
	}{
		{"stays away", func(*world, *Job) {}, []time.Duration{drain}},
		{"a second connection to it is found late", func(w *world, j *Job) {
			time.Sleep(drain / 2)
			w.mu.Lock()
			w.tcp = append(w.tcp, stale(unix.IPPROTO_TCP, 2))
			w.mu.Unlock()
			j.Changed(false, true)
		}, []time.Duration{drain, drain}},
		{"serves again", func(w *world, j *Job) {
			time.Sleep(drain / 2)
			w.returns(j, backend, true)
		}, nil},
		{"serves again for a moment", func(w *world, j *Job) {
			time.Sleep(drain / 2)
			w.returns(j, backend, true)
			w.returns(j, backend, false)
		}, []time.Duration{drain + drain/2}},
		{"another change meanwhile", func(w *world, j *Job) {
			time.Sleep(drain / 2)
			j.Changed(true, true)
		}, []time.Duration{drain}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &world{tcp: []datapath.StaleSocket{first}}
				j := w.run(t, Config{TCPDrain: drain}, Iterator)
				j.Changed(false, true)
				synctest.Wait()
				test.then(w, j)
				sleep(time.Hour)
				if !slices.Equal(w.resets, test.want) {
					t.Errorf("resets at %v, want %v", w.resets, test.want)
				}
				if st := j.Status(); st.Pending || st.Draining != 0 || st.EndedTCP != uint64(len(test.want)) {
					t.Errorf("at the end: %+v", st)
				}
			})
		})
	}
}

// A backend that has come back after a sweep found it gone, and before that is
// noted, is not draining.
func TestDrainIsNotOfABackendThatServes(t *testing.T) {
	s := stale(unix.IPPROTO_TCP, 1)
	serves := true
	d := drain{timeout: time.Second, gone: map[datapath.Connection]gone{}, serves: func(datapath.Connection) bool { return serves }}
	now := time.Now()
	if d.found(s.Connection(), now) || len(d.gone) != 0 {
		t.Errorf("it is draining: %v", d.gone)
	}
	serves = false
	if d.found(s.Connection(), now.Add(time.Hour)) {
		t.Error("its time is over at once")
	}
}

// returns changes whether a backend serves.
func (w *world) returns(j *Job, c datapath.Connection, serves bool) {
	w.mu.Lock()
	w.serving[c] = serves
	w.mu.Unlock()
	j.Changed(false, !serves)
}

// What the netlink method is told to end and cannot is an error, and is not
// counted.
func TestJobReportsWhatNetlinkCannotEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{udp: []datapath.StaleSocket{stale(unix.IPPROTO_UDP, 1)}}
		j := w.run(t, Config{}, Netlink)
		j.mu.Lock()
		j.end = func(uint8, []datapath.StaleSocket) (int, error) { return 0, unix.EPERM }
		j.mu.Unlock()
		j.Changed(true, false)
		synctest.Wait()
		if st := j.Status(); st.LastError == "" || st.EndedUDP != 0 {
			t.Errorf("%+v", st)
		}
	})
}

func TestChoose(t *testing.T) {
	able := func(end bool) (finder, error) { return &world{takes: map[bool]time.Duration{true: 1}[end]}, nil }
	never := func(bool) (finder, error) { return nil, errors.New("no iterators") }
	onlyTold := func(end bool) (finder, error) {
		if end {
			return never(end)
		}
		return able(end)
	}
	for _, c := range []struct {
		asked  Method
		canEnd bool
		open   opener
		want   Method
		fails  bool
	}{
		{Auto, true, able, Iterator, false},
		{Auto, false, able, Netlink, false},
		{Auto, true, onlyTold, Netlink, false},
		{Auto, true, never, Off, true},
		{Iterator, true, able, Iterator, false},
		{Iterator, false, able, Off, true},
		{Iterator, true, onlyTold, Off, true},
		{Netlink, true, able, Netlink, false},
		{Netlink, true, never, Off, true},
		{Off, true, able, Off, false},
	} {
		method, f, why, err := choose(c.asked, c.canEnd, c.open)
		if method != c.want || (err != nil) != c.fails || why == "" {
			t.Errorf("%s of a kernel that can end sockets %t: %s, %q, %v; want %s", c.asked, c.canEnd, method, why, err, c.want)
		}
		if f != nil && (f.(*world).takes == 1) != (method == Iterator) {
			t.Errorf("%s: the finder ends sockets by itself, which is not for %s", c.asked, method)
		}
		if (f == nil) != (method == Off) {
			t.Errorf("%s: finder %v for %s", c.asked, f, method)
		}
	}
}
