// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"beeline.io/beeline/test/lab"
)

// P2: in any mixture of nodes and devices with and without the shortcut, and after each switch between them,
// connections live on with the right contents, new ones work, and nothing is invalid to the kernel's conntrack.
func TestMixtures(t *testing.T) {
	whole := startWorld(t, lab.Shape{})
	w := whole
	const pause = 5 * time.Millisecond
	streams := []*stream{
		w.stream("a1", "a2", 0, pause), w.stream("a1", "b1", 0, pause), w.stream("a1", "b1", 1, pause), w.stream("b2", "a2", 0, pause),
	}
	udp := w.datagrams("a1", "b2")
	w.advance(streams, 10)
	for _, step := range []struct {
		name, node, devices string // devices: empty for cleanup
	}{
		{"off at node-a", "node-a", "off"},
		{"two pods of node-a", "node-a", "a1,a3"},
		{"off at node-b, too", "node-b", "off"},
		{"all of node-a, off at node-b", "node-a", "auto"},
		{"removed from node-a", "node-a", ""},
		{"on at both", "node-a", "auto"},
		{"on at both", "node-b", "auto"},
	} {
		t.Run(step.name, func(t *testing.T) {
			w := whole.in(t)
			w.restart(step.node, step.devices)
			streams = append(streams, whole.stream("a2", "b2", len(streams)%2, pause))
			w.advance(streams, 10)
			before := w.invalid("node-a") + w.invalid("node-b")
			for _, between := range [][2]string{{"a1", "a2"}, {"a3", "a2"}, {"a1", "b1"}, {"b1", "a2"}, {"b2", "a3"}, {"node-b", "a1"}} {
				w.reach(between[0], between[1])
			}
			w.advance(streams, 10)
			if n := w.invalid("node-a") + w.invalid("node-b") - before; n > 0 {
				t.Errorf("%d packets were dropped as invalid", n)
			}
		})
	}
	for _, s := range streams {
		if err := s.finish(); err != nil {
			t.Error(err)
		}
	}
	if lost := udp(); lost > datagramsLost {
		t.Errorf("%d datagrams were lost", lost)
	}
	t.Logf("dropped as invalid at the switches: %d and %d packets", w.invalid("node-a"), w.invalid("node-b"))
}

// restart gives a node's agent other devices of pods; empty: it ends, and cleanup removes everything.
func (w *world) restart(node, devices string) {
	w.t.Helper()
	a := w.agents[node]
	w.must(a.Stop())
	if devices == "" {
		_, err := a.CLI("cleanup")
		w.must(err)
		return
	}
	a.Flags = []string{"--pod-devices=" + devices}
	w.must(a.Start())
	switch {
	case devices == "auto" && node == "node-a":
		w.awaitPods(node, "a1", "a2", "a3")
	case devices == "auto":
		w.awaitPods(node, "b1", "b2", "b3")
	case devices != "off":
		w.awaitPods(node, "a1", "a3")
	}
}

// datagramsLost is how many datagrams may be lost in all switches.
const datagramsLost = 10

// datagrams has a pod ask another one by UDP every few milliseconds over one socket. It returns a function that ends
// this and tells how many were lost.
func (w *world) datagrams(from, to string) func() (lost int64) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	conn, err := w.Host(from).Dial(ctx, "udp", addresses(w.Host(to), lab.PortUDP)[0].String())
	w.must(err)
	var sent, answered atomic.Int64
	done := make(chan struct{}, 2)
	go func() {
		defer func() { done <- struct{}{} }()
		for ctx.Err() == nil {
			if _, err := conn.Write([]byte("hello")); err == nil {
				sent.Add(1)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	go func() {
		defer func() { done <- struct{}{} }()
		b := make([]byte, 2048)
		for {
			if _, err := conn.Read(b); err != nil {
				return
			}
			answered.Add(1)
		}
	}()
	w.t.Cleanup(func() { cancel(); conn.Close() })
	return func() int64 {
		cancel()
		<-done
		w.must(conn.(*net.UDPConn).SetReadDeadline(time.Now().Add(time.Second)))
		<-done
		return sent.Load() - answered.Load()
	}
}
