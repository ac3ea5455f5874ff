// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/test/lab"
)

// A napiThread is the kernel thread that handles everything that a device receives, instead of the softirq: so
// it has a CPU and a time of its own.
type napiThread int

// How often an idle receiver polls before it enables interrupts again, and the interval: fewer packets arrive
// in that time than its ring holds.
const (
	restlessPolls = 1000
	restlessPause = 20 * time.Microsecond
)

// restless makes a device's thread poll by itself (napi_defer_hard_irqs, Linux 5.8). With veth, the sender
// spends up to microseconds on waking another CPU, and the slower it is, the more often its receiver sleeps. A
// NIC is not woken.
func restless(ctx context.Context, host *lab.Host, device string) error {
	const script = `mount -t sysfs sysfs /sys && cd "/sys/class/net/$1" && echo "$2" >gro_flush_timeout && echo "$3" >napi_defer_hard_irqs`
	return harness.RunOn(ctx, host, "", "unshare", "--mount", "sh", "-c", script, "sh", device,
		fmt.Sprint(restlessPause.Nanoseconds()), fmt.Sprint(restlessPolls))
}

// newNAPIThread gives a device of a host its thread, on one CPU, in the real-time class: it precedes all
// processes, as the softirq does.
func newNAPIThread(ctx context.Context, host *lab.Host, device string, index, cpu int) (napiThread, error) {
	// The host's own /sys, visible only here.
	const script = `mount -t sysfs sysfs /sys && echo 1 >"/sys/class/net/$1/threaded"`
	if err := harness.RunOn(ctx, host, "", "unshare", "--mount", "sh", "-c", script, "sh", device); err != nil {
		return 0, fmt.Errorf("a thread for what %s receives (Linux 5.12): %w", device, err)
	}
	var pid int
	if err := host.Do(func() (err error) { pid, err = napiPID(index); return err }); err != nil {
		return 0, fmt.Errorf("thread of %s: %w", device, err)
	}
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(pid, &set); err != nil {
		return 0, fmt.Errorf("host %s: thread of %s on CPU %d: %w", host.Name, device, cpu, err)
	}
	if err := beforeProcesses(pid, 2); err != nil {
		return 0, fmt.Errorf("host %s: thread of %s before processes: %w", host.Name, device, err)
	}
	return napiThread(pid), nil
}

// beforeProcesses puts a thread into the real-time class: the higher priority on a CPU runs. 0 restores the
// normal class.
func beforeProcesses(thread int, priority uint32) error {
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: priority}
	if priority == 0 {
		attr.Policy = unix.SCHED_NORMAL
	}
	return unix.SchedSetAttr(thread, &attr, 0)
}

// Constants of the generic netlink family netdev (Documentation/netlink/specs/netdev.yaml).
const (
	netdevNAPIGet     = 11
	netdevNAPIIfindex = 1
	netdevNAPIPID     = 4
)

// genericHeader is struct genlmsghdr: command, version, and two bytes that must be 0; the library's has only
// the first two.
type genericHeader [4]byte

func (h genericHeader) Len() int          { return len(h) }
func (h genericHeader) Serialize() []byte { return h[:] }

// napiPID returns a device's thread in the calling thread's network namespace.
func napiPID(index int) (int, error) {
	family, err := netlink.GenlFamilyGet("netdev")
	if err != nil {
		return 0, fmt.Errorf("the kernel's family netdev (Linux 6.3): %w", err)
	}
	request := nl.NewNetlinkRequest(int(family.ID), unix.NLM_F_DUMP)
	request.AddData(genericHeader{netdevNAPIGet, 1})
	request.AddData(nl.NewRtAttr(netdevNAPIIfindex, nl.Uint32Attr(uint32(index))))
	messages, err := request.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return 0, fmt.Errorf("netdev napi-get (Linux 6.8): %w", err)
	}
	var pids []int
	for _, m := range messages {
		attributes, err := nl.ParseRouteAttr(m[nl.SizeofGenlmsg:])
		if err != nil {
			return 0, err
		}
		for _, a := range attributes {
			if a.Attr.Type == netdevNAPIPID && len(a.Value) == 4 {
				pids = append(pids, int(binary.NativeEndian.Uint32(a.Value)))
			}
		}
	}
	if len(pids) != 1 {
		return 0, fmt.Errorf("device %d has %d threads, want 1", index, len(pids))
	}
	return pids[0], nil
}

// time is the CPU time that the thread has used. It is exact once the thread sleeps, which it does when it is
// idle.
func (t napiThread) time() (time.Duration, error) {
	for deadline := time.Now().Add(ratePatience); ; time.Sleep(100 * time.Microsecond) {
		state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", t))
		if err != nil {
			return 0, err
		}
		_, rest, _ := strings.Cut(string(state), ") ")
		if strings.HasPrefix(rest, "S") || strings.HasPrefix(rest, "I") {
			break
		}
		if time.Now().After(deadline) {
			return 0, fmt.Errorf("thread %d still runs, with nothing to receive: %.40s", t, rest)
		}
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", t)) // time on a CPU in ns, and more
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(text), " ")
	ns, err := strconv.ParseInt(first, 10, 64)
	return time.Duration(ns), err
}
