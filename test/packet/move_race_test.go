// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/cilium/ebpf"

	"beeline.io/beeline/test/packet/model"
)

// The segment that completes a handshake and the first data arrive on two CPUs at once. One CPU moves the flow to the
// table of assured flows; the other finds the flow at every step of that. A segment without a flow would begin one,
// and might reach another backend. Replies are translated afterwards.
func TestFlowIsMovedMeanwhile(t *testing.T) {
	const flows = 20000
	all := cpus(t)
	if len(all) < 2 {
		t.Skip("this machine has one CPU")
	}
	w := newWorld(t, limits{tracks: 8 * flows})
	w.apply(t, w.scene())
	w.enter(t)
	f := families[0]
	frames := make([][4][]byte, flows) // of each flow: SYN, SYN+ACK, ACK, data
	for n := range frames {
		p := f.question(tcp, toLocal)
		p.from = netip.AddrPortFrom(netip.AddrFrom4([4]byte{44, 0, byte(n >> 8), byte(n)}), clientPort)
		p.seq = 1000
		frames[n][0] = p.frame(t)
		answer := reply(on(f.local, targetPort), p.from, tcp)
		answer.seq, answer.ack = 5000, 1001
		frames[n][1] = answer.frame(t)
		p.flags, p.seq, p.ack = ack, 1001, 5001
		frames[n][2] = p.frame(t)
		p.flags, p.payload = psh|ack, []byte("data")
		frames[n][3] = p.frame(t)
	}
	var handshakes, sent atomic.Int64
	defer handshakes.Store(flows) // after a failure, too
	failed := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlock: the thread ends with its namespace
		w.enter(t)
		onCPU(t, all[1])
		options := ebpf.RunOptions{Context: [48]uint32{10: w.index["eth0"]}, DataOut: make([]byte, 1<<10)}
		for n := range int64(flows) {
			for handshakes.Load() <= n {
			}
			// The other CPU needs longer for its packet: this one waits, and each time otherwise, to
			// meet every step.
			for range n % 64 * 16 {
				sent.Add(0)
			}
			for range 3 {
				options.Data, options.DataOut = frames[n][3], options.DataOut[:cap(options.DataOut)]
				if _, err := w.ingress.Run(&options); err != nil {
					failed <- err
					sent.Store(flows)
					return
				}
			}
			sent.Store(n + 1)
		}
		failed <- nil
	}()
	onCPU(t, all[0])
	for n := range int64(flows) {
		w.run(t, atIngress, frames[n][0])
		w.run(t, atEgress, frames[n][1])
		handshakes.Store(n + 1)
		w.run(t, atIngress, frames[n][2])
		for sent.Load() <= n {
		}
		w.run(t, atEgress, frames[n][1])
	}
	must(t, <-failed)
	want := [model.Reasons]uint64{model.New: flows, model.Established: 4 * flows, model.Reply: 2 * flows}
	if got := w.counts(t); got != want {
		t.Errorf("%d flows: counted %v, want %v", flows, got, want)
	}
}
