// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"context"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/node/netdev"
	"beeline.io/beeline/internal/node/netns"
	"beeline.io/beeline/internal/node/podcgroup"
	"beeline.io/beeline/internal/util/wakeup"
)

// A deviceWatch follows the devices and routes of a pod's network namespace.
type deviceWatch struct {
	names     interfaces
	namespace *netns.Namespace
	cancel    context.CancelFunc

	mu    sync.Mutex
	found podDevices
}

// devicesInterval is the least time between two looks at the routes of a pod.
const devicesInterval = 50 * time.Millisecond

// devicesOf returns the devices of a pod that have a rule, and follows them from the first call on.
func (s *Shortcut) devicesOf(p *Pod) podDevices {
	if p.NetNSCookie == 0 || !p.interfaces.some() {
		return podDevices{}
	}
	w := s.watches[p.NetNSCookie]
	if w != nil && w.names.equal(&p.interfaces) {
		return w.latest()
	}
	namespace, err := podcgroup.Namespace(p.CgroupDirectory)
	if namespace == nil || err != nil {
		return p.facts.devices // it ends, or the next call succeeds
	}
	if w != nil {
		w.cancel()
	}
	ctx, cancel := context.WithCancel(context.Background())
	w = &deviceWatch{names: p.interfaces, namespace: namespace, cancel: cancel}
	s.watches[p.NetNSCookie] = w
	w.read()
	go w.run(ctx, s.moved)
	return w.latest()
}

// endWatches ends those that no pod needs.
func (s *Shortcut) endWatches(pods []Pod) {
	for cookie, w := range s.watches {
		if !slices.ContainsFunc(pods, func(p Pod) bool { return p.NetNSCookie == cookie && p.interfaces.some() }) {
			w.cancel()
			delete(s.watches, cookie)
		}
	}
}

func (w *deviceWatch) latest() podDevices {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.found
}

// read reads the devices and routes as they are now.
func (w *deviceWatch) read() {
	var found podDevices
	err := w.namespace.Do(func() (err error) {
		found, err = readDevices(w.names)
		return err
	})
	if err != nil {
		found.routes, found.unclear = nil, err.Error()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.found = found
}

// run sends a signal whenever devices or routes may have changed, until ctx ends.
func (w *deviceWatch) run(ctx context.Context, moved wakeup.Signal) {
	defer w.namespace.Close()
	changed := wakeup.NewSignal()
	var loop sync.WaitGroup
	defer loop.Wait()
	if watcher := w.subscribe(changed); watcher != nil {
		changed.Send() // for changes before the subscription
		loop.Go(func() { watcher.Run(ctx) })
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-time.After(devicesAge):
		}
		before := w.latest()
		w.read()
		if now := w.latest(); !now.equal(&before) {
			moved.Send()
		}
		wakeup.Sleep(ctx, devicesInterval)
	}
}

// subscribe returns a watcher that sends a signal when devices or routes may have changed; nil if that fails.
func (w *deviceWatch) subscribe(changed wakeup.Signal) (watcher *netdev.Watcher) {
	_ = w.namespace.Do(func() (err error) {
		watcher, err = netdev.Subscribe(func(syscall.NetlinkMessage) { changed.Send() }, unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR,
			unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_NEXTHOP)
		return err
	})
	return watcher
}

// devicesAge is after what time routes are read again without a notification: the kernel gives none for some, as for
// IPv4 routes that go with a device, and none is received if the subscription fails.
const devicesAge = 10 * time.Second

// followDevices writes what has changed for pods whose devices or routes have.
func (s *Shortcut) followDevices() {
	s.work.Lock()
	defer s.work.Unlock()
	pods := s.Pods()
	var changed []*Pod
	for i := range pods {
		p := &pods[i]
		if devices := s.devicesOf(p); !devices.equal(&p.facts.devices) {
			p.facts.devices = devices
			changed = append(changed, p)
		}
	}
	if changed == nil {
		return
	}
	s.writePolicies(pods)
	for _, p := range changed {
		s.serve(p, nil)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pods = pods
}
