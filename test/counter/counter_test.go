// SPDX-License-Identifier: Apache-2.0

package counter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/spf13/pflag"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/agent"
	"beeline.io/beeline/internal/api"
	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/component"
	"beeline.io/beeline/internal/report/condition"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/node"
)

// components are the product's, and the counter.
func components() component.List {
	return append(agent.Components(),
		New(),
	)
}

// TestMain is also the agent's program, with the counter, if the first argument is "agent".
func TestMain(m *testing.M) {
	lab.Main()
	if len(os.Args) > 1 && os.Args[1] == "agent" {
		if err := runAgent(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func runAgent(args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	config := agent.Config{Components: components()}
	fs := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	config.AddFlags(fs)
	if err := errors.Join(fs.Parse(args), config.Complete(fs)); err != nil {
		return err
	}
	return agent.Run(ctx, config, "test", slog.New(slog.NewTextHandler(os.Stderr, nil)))
}

// world is a node with an agent, and a client that sends to it.
type world struct {
	t            *testing.T
	node, client *lab.Host
	agent        *node.Agent
	device       int // eth0 of the node
}

// newWorld makes a world whose agent is not started yet.
func newWorld(t *testing.T) *world {
	t.Helper()
	program, err := os.Executable()
	must(t, err)
	l := lab.New(t)
	w := &world{t: t, node: l.Nodes()[0], client: l.Host("client")}
	folder := &node.Folder{Path: t.TempDir()}
	must(t, folder.Write("none", []byte("# no objects\n")))
	w.agent = &node.Agent{Host: w.node, Program: program, Manifests: folder.Path, EdgeMode: "off"}
	must(t, w.node.Do(func() error {
		device, err := netlink.LinkByName("eth0")
		if err == nil {
			w.device = device.Attrs().Index
		}
		return err
	}))
	t.Cleanup(func() { must(t, w.agent.Stop()) })
	return w
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// restart stops the agent, if it runs, and starts it with flags.
func (w *world) restart(flags ...string) {
	w.t.Helper()
	must(w.t, w.agent.Stop())
	w.agent.Flags = flags
	must(w.t, w.agent.Start())
}

// send sends datagrams from one host to another, where nobody listens.
func (w *world) send(from, to *lab.Host, count int) {
	w.t.Helper()
	fd, err := from.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	must(w.t, err)
	defer unix.Close(fd)
	for range count {
		must(w.t, unix.Sendto(fd, []byte("datagram"), 0, &unix.SockaddrInet4{Addr: to.Addr4.As4(), Port: 9}))
	}
}

// ping sends an echo request from the client to the node.
func (w *world) ping() {
	w.t.Helper()
	fd, err := w.client.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP)
	must(w.t, err)
	defer unix.Close(fd)
	request := []byte{8, 0, 0xf7, 0xff, 0, 0, 0, 0} // type, code, checksum, identifier, number
	must(w.t, unix.Sendto(fd, request, 0, &unix.SockaddrInet4{Addr: w.node.Addr4.As4()}))
}

// wantState waits until status shows these numbers of packets, sources and devices.
func (w *world) wantState(packets, sources, devices int) {
	w.t.Helper()
	want := api.ComponentStatus{Name: "counter", State: fmt.Sprintf("packets %d, sources %d, devices %d", packets, sources, devices)}
	var last []api.ComponentStatus
	for deadline := time.Now().Add(15 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		s, err := w.agent.Status()
		must(w.t, err)
		if last = s.Components; slices.Contains(last, want) {
			return
		}
	}
	w.t.Errorf("status shows %+v, want %+v", last, want)
}

func (w *world) conditions() condition.List {
	w.t.Helper()
	s, err := w.agent.Status()
	must(w.t, err)
	return s.Conditions
}

// linkPin is the pin of the link to the device.
func (w *world) linkPin() string {
	return filepath.Join(w.agent.BPFFS(), "links", fmt.Sprintf("counter-%d-xdp", w.device))
}

// cgroupPin is the pin of the link to the node's cgroup.
func (w *world) cgroupPin() string { return filepath.Join(w.agent.BPFFS(), "links", "count_leaving") }

func (w *world) tablePin() string {
	return bpf.TablePath(w.agent.BPFFS(), CounterMapPacketsBySource)
}

// link returns the IDs of the pinned link and of its program.
func (w *world) link() (link.ID, ebpf.ProgramID) {
	w.t.Helper()
	l, err := link.LoadPinnedLink(w.linkPin(), nil)
	must(w.t, err)
	defer l.Close()
	info, err := l.Info()
	must(w.t, err)
	return info.ID, info.Program
}

// table returns the ID and the size of the pinned table.
func (w *world) table() (ebpf.MapID, uint32) {
	w.t.Helper()
	m, err := ebpf.LoadPinnedMap(w.tablePin(), nil)
	must(w.t, err)
	defer m.Close()
	info, err := m.Info()
	must(w.t, err)
	id, _ := info.ID()
	return id, m.MaxEntries()
}

// attached reports whether a program is at the node's device.
func (w *world) attached() (attached bool) {
	w.t.Helper()
	must(w.t, w.node.Do(func() error {
		device, err := netlink.LinkByIndex(w.device)
		if err == nil {
			attached = device.Attrs().Xdp != nil && device.Attrs().Xdp.Attached
		}
		return err
	}))
	return attached
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// all are the pins of the component.
func (w *world) all() []string { return []string{w.linkPin(), w.cgroupPin(), w.tablePin()} }

// whole reports whether everything is pinned and attached.
func (w *world) whole() bool {
	return !slices.ContainsFunc(w.all(), func(pin string) bool { return !exists(pin) }) && w.attached()
}

// wantNothing checks that nothing of the component is attached or pinned.
func (w *world) wantNothing(when string) {
	w.t.Helper()
	if w.attached() {
		w.t.Errorf("%s, a program is attached to the device", when)
	}
	for _, pin := range append(w.all(), filepath.Join(w.agent.BPFFS(), "programs", "count_leaving")) {
		if exists(pin) {
			w.t.Errorf("%s, %s is pinned", when, pin)
		}
	}
}

const (
	enabled  = "--counter-devices=eth0"
	ofSize1  = "--counter-max-sources=1"
	ofSize64 = "--counter-max-sources=64"
)

// A component is loaded with its constants and attached to devices and the node's cgroup. Status, conditions
// and metrics show its output.
func TestLoadAndStatus(t *testing.T) {
	w := newWorld(t)
	w.restart(enabled, ofSize1)
	w.send(w.client, w.node, 5)
	w.wantState(5, 1, 1)
	if c := w.conditions(); !c.Has(condition.TableNearlyFull) || !strings.Contains(c.String(), "raise --counter-max-sources") {
		t.Errorf("its table is full, but the conditions are %v", c)
	}
	w.wantMetric(w.client.Addr4, 5)
	w.restart(enabled, ofSize64)
	w.send(w.node, w.client, 2)
	w.wantState(7, 2, 1)
	w.wantMetric(w.node.Addr4, 2)
	w.restart(enabled, ofSize64, "--counter-protocol=1")
	w.send(w.client, w.node, 1)
	w.ping()
	w.wantState(8, 2, 1) // another constant: the echo request counts, the datagram does not
}

// The programs and the table outlive the agent. The next one takes over the table, and replaces the programs in
// their links.
func TestRestart(t *testing.T) {
	w := newWorld(t)
	w.restart(enabled)
	w.send(w.client, w.node, 5)
	before, programBefore := w.link()
	tableBefore, _ := w.table()
	must(t, w.agent.Stop())
	w.send(w.client, w.node, 3)
	w.restart(enabled)
	w.wantState(8, 1, 1)
	after, programAfter := w.link()
	if table, _ := w.table(); table != tableBefore || after != before || programAfter == programBefore {
		t.Errorf("after a restart: table %d, link %d, program %d; before: %d, %d, %d; only the program should differ",
			table, after, programAfter, tableBefore, before, programBefore)
	}
}

// A table of another size keeps its entries, by its copy rule.
func TestResize(t *testing.T) {
	w := newWorld(t)
	w.restart(enabled, ofSize1)
	w.send(w.client, w.node, 5)
	before, size := w.table()
	w.restart(enabled, ofSize64)
	w.send(w.client, w.node, 2)
	w.wantState(7, 1, 1)
	if after, larger := w.table(); after == before || size != 1 || larger != 64 {
		t.Errorf("the table had %d entries and has %d, want 1 and 64", size, larger)
	}
	if c := w.conditions(); c.Has(condition.TableNearlyFull) {
		t.Errorf("the table has room, but the conditions are %v", c)
	}
}

// What another program removes from a component is restored, with the same table.
func TestRepair(t *testing.T) {
	w := newWorld(t)
	w.restart(enabled)
	w.send(w.client, w.node, 5)
	table, _ := w.table()
	for what, take := range map[string]func() error{
		"the pin of its link to the device is removed": func() error { return os.Remove(w.linkPin()) },
		"its link to the device is detached":           func() error { return detach(w.linkPin()) },
		"the pin of its link to the cgroup is removed": func() error { return os.Remove(w.cgroupPin()) },
		"the pin of its table is removed":              func() error { return os.Remove(w.tablePin()) },
	} {
		must(t, take())
		if !eventually(w.whole) {
			t.Errorf("%s, but it is not repaired", what)
			continue
		}
		if again, _ := w.table(); again != table {
			t.Errorf("%s, and then another table is pinned", what)
		}
	}
	w.send(w.client, w.node, 1)
	w.send(w.node, w.client, 1)
	w.wantState(7, 2, 1)
}

// Disabling a component removes everything of it, and so does `beeline cleanup`. It starts from zero
// afterwards.
func TestRemoval(t *testing.T) {
	w := newWorld(t)
	w.restart(enabled)
	w.send(w.client, w.node, 5)
	w.wantState(5, 1, 1)
	w.restart()
	w.wantNothing("disabled")

	w.restart(enabled)
	w.send(w.client, w.node, 1)
	w.wantState(1, 1, 1)
	must(t, w.agent.Stop())
	must(t, w.node.Do(func() error {
		_, err := agent.Cleanup(w.agent.BPFFS(), w.agent.Socket(), components())
		return err
	}))
	w.wantNothing("after cleanup")
	if exists(w.agent.BPFFS()) {
		t.Errorf("after cleanup, the directory of pins is there")
	}
}

// TestMissingDevice: a failure in a component is a condition, and everything else works.
func TestMissingDevice(t *testing.T) {
	w := newWorld(t)
	w.restart("--counter-devices=eth0,eth7")
	if c := w.conditions(); !c.Has(condition.DeviceNotServed) {
		t.Errorf("conditions %v", c)
	}
	w.send(w.client, w.node, 1)
	w.wantState(1, 1, 1)
}

// wantMetric checks the metric of a source, and that the product's metrics are there, too.
func (w *world) wantMetric(source netip.Addr, want float64) {
	w.t.Helper()
	var metrics []api.Metric
	must(w.t, api.NewClient(w.agent.Socket()).Get(context.Background(), api.MetricsPath, &metrics))
	value, product := -1.0, false
	for _, m := range metrics {
		product = product || m.Name == "beeline_socket_calls_total"
		if m.Name == "beeline_counter_packets_total" && m.Labels["source"] == source.String() {
			value = m.Value
		}
	}
	if value != want || !product {
		w.t.Errorf("the metric of %s is %v, want %v; metrics of the product %t", source, value, want, product)
	}
}

// detach is what `bpftool link detach` does.
func detach(path string) error {
	l, err := link.LoadPinnedLink(path, nil)
	if err != nil {
		return err
	}
	return errors.Join(l.Detach(), l.Close())
}

// eventually polls until holds returns true.
func eventually(holds func() bool) bool {
	for deadline := time.Now().Add(15 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if holds() {
			return true
		}
	}
	return false
}
