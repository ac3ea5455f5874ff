// SPDX-License-Identifier: Apache-2.0

package tcfilter

import (
	"context"
	"fmt"
	"regexp"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node"
	"beeline.io/beeline/internal/util/wakeup"
)

// What is at a device is found as it comes and goes; Beeline's own programs do not count.
func TestFinder(t *testing.T) {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = follow(t)
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func follow(t *testing.T) error {
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "eth1"}); err != nil {
		return err
	}
	device, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	own, err := passing("own")
	if err != nil {
		return err
	}
	defer own.Close()
	other, err := passing("other")
	if err != nil {
		return err
	}
	defer other.Close()
	info, _ := own.Info()
	ownID, _ := info.ID()
	f := New(func(id uint32) (string, bool) {
		if id == uint32(ownID) {
			return "own", false
		}
		return "other", true
	})
	var tcx link.Link
	index := device.Attrs().Index
	for _, step := range []struct {
		do   func() error
		want string
	}{
		{func() error { return nil }, "[] []"},
		{func() error { return netlink.QdiscAdd(clsact(index)) }, "[] []"},
		{func() error { return netlink.FilterAdd(filter(index, netlink.HANDLE_MIN_INGRESS, own)) }, "[] []"},
		{func() error { return netlink.FilterAdd(filter(index, netlink.HANDLE_MIN_EGRESS, other)) }, "[] [BPF program other, id N (tc filter at egress)]"},
		{func() (err error) {
			tcx, err = link.AttachTCX(link.TCXOptions{Interface: index, Program: other, Attach: ebpf.AttachTCXIngress})
			return err
		}, "[BPF program other, id N (tcx ingress)] [BPF program other, id N (tc filter at egress)]"},
		{func() error { return netlink.QdiscDel(clsact(index)) }, "[BPF program other, id N (tcx ingress)] []"},
		{func() error { return tcx.Close() }, "[] []"},
		{func() error {
			return netlink.QdiscAdd(&netlink.Tbf{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Parent: netlink.HANDLE_ROOT}, Rate: 1e6, Limit: 1e5, Buffer: 1e4})
		}, "[] [qdisc tbf]"},
		{func() error { return netlink.LinkDel(device) }, "[] []"},
	} {
		if err := step.do(); err != nil {
			return err
		}
		queues, err := netlink.QdiscList(nil)
		if err != nil {
			return err
		}
		all, err := f.At(map[int]string{index: "eth0"}, queues)
		if err != nil || len(all) != 1 {
			return fmt.Errorf("%+v, %w", all, err)
		}
		got := regexp.MustCompile(`id \d+`).ReplaceAllString(fmt.Sprint(all[0].Ingress, all[0].Egress), "id N")
		if got != step.want {
			t.Errorf("found %s, want %s", got, step.want)
		}
	}
	return nil
}

// passing loads a program that leaves packets to the next one.
func passing(name string) (*ebpf.Program, error) {
	const next = -1 // TC_ACT_UNSPEC, TCX_NEXT
	return ebpf.NewProgram(&ebpf.ProgramSpec{Name: name, Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, next), asm.Return()}})
}

func clsact(index int) netlink.Qdisc {
	return &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
}

func filter(index int, parent uint32, p *ebpf.Program) netlink.Filter {
	return &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: parent, Handle: 1, Priority: 1, Protocol: unix.ETH_P_ALL},
		Fd:          p.FD(), Name: "test", DirectAction: true,
	}
}

// Changes of queues and of others' filters are signalled, those of Beeline's own filters are not.
func TestWatch(t *testing.T) {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = watch(t)
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func watch(t *testing.T) error {
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "eth1"}); err != nil {
		return err
	}
	device, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	program, err := passing("any")
	if err != nil {
		return err
	}
	defer program.Close()
	network, err := node.Follow()
	if err != nil {
		return err
	}
	changed := wakeup.NewSignal()
	network.NotifyIf(changed, node.Queues, Concerns)
	var loop sync.WaitGroup
	defer loop.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	loop.Go(func() { _ = network.Run(ctx) })
	<-changed // the start
	index := device.Attrs().Index
	own := filter(index, netlink.HANDLE_MIN_INGRESS, program).(*netlink.BpfFilter)
	own.Name, own.Priority = OwnPrefix+"pod_12345678", 2
	other := filter(index, netlink.HANDLE_MIN_INGRESS, program)
	tbf := &netlink.Tbf{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Parent: netlink.HANDLE_ROOT}, Rate: 1e6, Limit: 1e5, Buffer: 1e4}
	for _, step := range []struct {
		name   string
		do     func() error
		signal bool
	}{
		{"add clsact", func() error { return netlink.QdiscAdd(clsact(index)) }, false},
		{"add an own filter", func() error { return netlink.FilterReplace(own) }, false},
		{"replace it", func() error { return netlink.FilterReplace(own) }, false},
		{"add another's", func() error { return netlink.FilterAdd(other) }, true},
		{"delete the own filter", func() error { return netlink.FilterDel(own) }, false},
		{"add a queue", func() error { return netlink.QdiscAdd(tbf) }, true},
		{"delete another's filter", func() error { return netlink.FilterDel(other) }, true},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		limit := 300 * time.Millisecond // the signals come within microseconds
		if step.signal {
			limit = time.Minute
		}
		select {
		case <-changed:
			if !step.signal {
				t.Errorf("%s: a signal", step.name)
			}
			for { // of the same change
				select {
				case <-changed:
					continue
				case <-time.After(100 * time.Millisecond):
				}
				break
			}
		case <-time.After(limit):
			if step.signal {
				t.Errorf("%s: no signal", step.name)
			}
		}
	}
	return nil
}
