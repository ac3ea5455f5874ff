// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"slices"
	"testing"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/conntrack/conntracktest"
)

const podIndex = 7

// newPodWorld has the device of a pod beside eth0.
func newPodWorld(t *testing.T, c Config) *world {
	return newWorld(t, c, hardware, device(podIndex, "veth7", func(d *Device) {
		d.Kind, d.DefaultRoute, d.Addresses = "veth", false, nil
		d.Direct = prefixes("10.10.1.11/32")
	}))
}

// putPodFlow stores the conntrack entries of a flow that a pod began by its device; one of them may be
// lost.
func (w *world) putPodFlow(entries [2]int, flags uint8) {
	now := bpf.Now()
	table := w.kernel.assured
	table.Put(tcp, "10.10.1.11:40000", backend, entries, [2]uint32{now, now})
	for key, t := range table {
		t.Device, t.Flags = podIndex, t.Flags|flags
		table[key] = t
	}
}

// walk makes a GC pass, and reads the devices if the pass requests that.
func (w *world) walk() {
	w.gc()
	w.rescan()
}

var (
	withPods    = []string{"2 egress ingress", "7 egress ingress"}
	withoutPods = withPods[:1]
)

func (w *world) wantAttached(when string, want []string) {
	w.t.Helper()
	if got := w.kernel.attachedTo(); !slices.Equal(got, want) {
		w.t.Errorf("%s: attached %v, want %v", when, got, want)
	}
}

// R30: a pod's device that is no longer requested stays while a flow continues that the pod began there,
// whichever of its conntrack entries is left; the programs see no change.
func TestDeviceStaysForFlows(t *testing.T) {
	for name, c := range map[string]struct {
		records [2]int
		flags   uint8
		stays   bool
	}{
		"both records":               {[2]int{conntracktest.Both, conntracktest.Both}, 0, true},
		"the client's":               {[2]int{conntracktest.Both, conntracktest.Lost}, 0, true},
		"the backend's":              {[2]int{conntracktest.Lost, conntracktest.Both}, 0, true},
		"a backend of this node":     {[2]int{conntracktest.Both, conntracktest.Both}, uint8(bpf.ConntrackLocal), true},
		"begun where it left":        {[2]int{conntracktest.Both, conntracktest.Both}, uint8(bpf.ConntrackOutbound), false},
		"no flow":                    {[2]int{conntracktest.Lost, conntracktest.Lost}, 0, false},
		"closing, with both entries": {[2]int{conntracktest.Closing, conntracktest.Closing}, 0, true},
		"closed just now":            {[2]int{conntracktest.Closed, conntracktest.Closed}, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newPodWorld(t, Config{Mode: TC})
			w.Start()
			w.SetPods(prefixes("10.10.1.11/32"))
			w.walk()
			w.putPodFlow(c.records, c.flags) // since the last walk
			w.SetPods(nil)
			w.rescan()
			w.wantAttached("before a walk", withPods)
			want := withoutPods
			if c.stays {
				want = withPods
			}
			for range 3 {
				w.walk()
			}
			w.wantAttached("after a walk", want)
			if told := w.kernel.table[podIndex].Pods == 1; told != c.stays {
				t.Errorf("the programs have a device of pods: %v, want %v", told, c.stays)
			}
			clear(w.kernel.assured)
			w.walk()
			w.wantAttached("without flows", withoutPods)
		})
	}
}

// The entries of a closed connection last for minutes, to keep others from its ports: that long it needs no device.
func TestDeviceDoesNotStayForClosedConnections(t *testing.T) {
	w := newPodWorld(t, Config{Mode: TC})
	w.Start()
	w.SetPods(prefixes("10.10.1.11/32"))
	w.walk()
	w.putPodFlow([2]int{conntracktest.Closed, conntracktest.Closed}, 0)
	for key, t := range w.kernel.assured {
		t.LastSeen -= afterClose + 2
		w.kernel.assured[key] = t
	}
	w.SetPods(nil)
	for range 2 {
		w.walk()
	}
	w.wantAttached("after a walk", withoutPods)
	if len(w.kernel.assured) != 2 {
		t.Errorf("the connection has %d entries, want both", len(w.kernel.assured))
	}
}

// A draining device of a pod is one of pods again when a pod requests it.
func TestDeviceIsAskedForAgain(t *testing.T) {
	w := newPodWorld(t, Config{Mode: TC})
	w.Start()
	for _, role := range []string{podsRole, flowsRole, podsRole} {
		if role == podsRole {
			w.SetPods(prefixes("10.10.1.11/32"))
		} else {
			w.SetPods(nil)
		}
		w.rescan()
		if s := w.want("eth0 tc", "veth7 tc"); s.Devices[1].Role != role {
			t.Errorf("its role is %q, want %q", s.Devices[1].Role, role)
		}
	}
}

// A pod's device also stays if the agent that it was requested from has been replaced.
func TestDeviceOfAnEarlierAgentStaysForFlows(t *testing.T) {
	for _, flow := range []bool{true, false} {
		w := newPodWorld(t, Config{Mode: TC, Devices: []string{"eth*"}})
		w.kernel.hooks[podIndex] = []bpf.EdgeHook{bpf.EdgeEgress, bpf.EdgeIngress}
		want := withoutPods
		if flow {
			w.putPodFlow([2]int{conntracktest.Both, conntracktest.Both}, 0)
			want = withPods
		}
		w.Start()
		w.wantAttached("at the start", withPods)
		w.walk()
		w.walk()
		w.wantAttached("after a walk", want)
	}
}

// A device that is enslaved to a bridge or bond does not stay for flows.
func TestEnslavedDeviceDoesNotLinger(t *testing.T) {
	w := newPodWorld(t, Config{Mode: TC})
	w.Start()
	w.SetPods(prefixes("10.10.1.11/32"))
	w.putPodFlow([2]int{conntracktest.Both, conntracktest.Both}, 0)
	w.SetPods(nil)
	w.walk()
	w.wantAttached("with a flow", withPods)
	w.devices = []Device{hardware, w.devices[1]}
	w.devices[1].Enslaved = true
	w.rescan()
	w.wantAttached("enslaved", withoutPods)
}
