// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"beeline.io/beeline/internal/bpf"
	shortcut "beeline.io/beeline/internal/shortcut/pod"
	"beeline.io/beeline/test/lab"
)

// A policyChange is how an engine of NetworkPolicies denies connections of the first to the second pod of a node.
type policyChange struct {
	name string
	// before are the rules without the policy.
	before string
	// deny is the change, with the addresses of the two pods.
	deny func(from, to netip.Addr) string
	// adds: the change is one rule, which is deleted before the next repetition. Otherwise all is written anew.
	adds bool
	// gone: the rules go and come back, as when the engine starts again.
	gone bool
	// churn: pods of the node come and go meanwhile, twice a second.
	churn bool
}

// engineTable is a table of an engine with a set of the selected pods, and other rules.
const engineTable = `table inet engine {
	set selected { type ipv4_addr; }
	map pods { type ipv4_addr : verdict; }
	chain selected_pods { ip saddr 10.10.77.2 drop; }
	chain forward {
		type filter hook forward priority 1; policy accept;
		ct state established,related accept
		ip daddr @selected jump selected_pods
		ip daddr vmap @pods
		%s
	}
}
`

// manyRules are rules of pods that are not of these nodes.
func manyRules(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "ip saddr 10.10.%d.%d ip daddr 10.10.%d.%d tcp dport %d drop\n", 100+i%50, 1+i/50%250, 151+i%30, 1+i%250, 1+i%60000)
	}
	return b.String()
}

func policyChanges(rules int) []policyChange {
	drop := func(from, to netip.Addr) string {
		return fmt.Sprintf("add rule inet engine forward ip saddr %s ip daddr %s drop\n", from, to)
	}
	return []policyChange{
		{name: "added", before: fmt.Sprintf(engineTable, ""), deny: drop, adds: true},
		{name: "changed", before: fmt.Sprintf(engineTable, ""), deny: func(from, to netip.Addr) string {
			return fmt.Sprintf("flush chain inet engine forward\nadd rule inet engine forward ip saddr { %s } ip daddr { 10.10.77.1, %s } reject\n", from, to)
		}},
		{name: "pod labelled", before: fmt.Sprintf(engineTable, "ip daddr @selected ip saddr != 10.10.77.0/24 drop"), deny: func(_, to netip.Addr) string {
			return fmt.Sprintf("add element inet engine selected { %s }\n", to)
		}},
		{name: "engine restarts", before: fmt.Sprintf(engineTable, ""), gone: true, deny: func(from, to netip.Addr) string {
			return fmt.Sprintf(engineTable, fmt.Sprintf("ip saddr %s ip daddr %s drop", from, to))
		}},
		{name: fmt.Sprintf("added beside %d rules", rules), before: fmt.Sprintf(engineTable, manyRules(rules)), deny: drop, adds: true},
		{name: fmt.Sprintf("added beside %d rules, with pods coming and going", rules), before: fmt.Sprintf(engineTable, manyRules(rules)), deny: drop, adds: true, churn: true},
		{name: fmt.Sprintf("%d rules written anew", rules), before: fmt.Sprintf(engineTable, manyRules(rules)), churn: true, deny: func(from, to netip.Addr) string {
			return "flush table inet engine\n" + fmt.Sprintf(engineTable, manyRules(rules)+fmt.Sprintf("ip saddr %s ip daddr %s drop", from, to))
		}},
	}
}

// A policy that denies a connection has its effect on new ones soon after its rules are there, however it comes: the
// last new connection of 20 a second that passes. Pods that come and go meanwhile do not end the shortcut of the
// others. The same at a node without the shortcut is the measure. With -short off, the times of 20 repetitions each,
// beside 20,000 rules, are those in docs/operate/pods.md.
func TestPolicyDelay(t *testing.T) {
	repeat, control, rules := 20, 5, 20000
	if testing.Short() {
		repeat, control, rules = 1, 0, 4000
	}
	w := newWorld(t, lab.Shape{}, "--pod-devices=auto")
	w.agents["node-b"].Flags = nil
	for _, a := range w.agents {
		w.must(a.Start())
	}
	w.meetPods()
	for _, change := range policyChanges(rules) {
		t.Run(change.name, func(t *testing.T) {
			w := w.in(t)
			for _, node := range []struct {
				name, from, to string
				repeat         int
			}{{"node-a", "a1", "a2", repeat}, {"node-b", "b1", "b2", control}} {
				delays := w.policyDelays(change, node.name, node.from, node.to, node.repeat)
				if slices.Sort(delays); len(delays) > 0 {
					t.Logf("%s: median %v, longest %v of %d", node.name, delays[len(delays)/2], delays[len(delays)-1], len(delays))
				}
			}
		})
	}
}

// mostTime bounds the repetitions of a change: a loaded machine makes fewer of them.
const mostTime = 2 * time.Minute

// policyDelays has a node deny connections of one of its pods to another, some times, and returns how long after that
// the last new connection was made.
func (w *world) policyDelays(change policyChange, node, from, to string, repeat int) (delays []time.Duration) {
	w.t.Helper()
	if repeat == 0 {
		return nil
	}
	w.load(node, change.before)
	defer w.run(node, "nft", "delete", "table", "inet", "engine")
	ctx, cancel := context.WithCancel(w.t.Context())
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer cancel()
	if change.churn {
		tasks.Go(func() { w.churn(ctx, node) })
	}
	w.awaitPath(node, from, to)
	if change.churn && node == "node-a" {
		w.wantShortcutMeanwhile(from, to)
	}
	for begun := time.Now(); len(delays) < repeat && time.Since(begun) < mostTime; {
		if len(delays) > 0 && !change.adds {
			w.load(node, "delete table inet engine\n"+change.before)
		}
		w.awaitPath(node, from, to)
		delays = append(delays, w.policyDelay(change, node, from, to))
		if change.adds {
			w.deleteLast(node)
		}
	}
	return delays
}

// policyDelay makes the change once.
func (w *world) policyDelay(change policyChange, node, from, to string) time.Duration {
	w.t.Helper()
	source, target := w.Host(from).Addr4, netip.AddrPortFrom(w.Host(to).Addr4, lab.PortTCP)
	ctx, cancel := context.WithCancel(w.t.Context())
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer cancel()
	d := &dialer{}
	tasks.Go(func() { d.run(ctx, w.Host(from), target) })
	begin := time.Now()
	w.eventually("connections are made", func() bool { return d.lastMade().After(begin.Add(4 * dialInterval)) })
	if change.gone {
		w.run(node, "nft", "delete", "table", "inet", "engine")
		time.Sleep(10 * dialInterval)
	}
	rulesOfChange := change.deny(source, target.Addr())
	changed := time.Now()
	w.load(node, rulesOfChange)
	if len(rulesOfChange) > 1<<12 { // nft itself takes long
		changed = time.Now()
	}
	for end := changed.Add(2 * policyDelay); time.Now().Before(end) || time.Since(d.lastMade()) < policyDelay && time.Since(changed) < patience; {
		time.Sleep(dialInterval)
	}
	delay := max(d.lastMade().Sub(changed), 0)
	if delay > policyDelay+soon {
		w.t.Errorf("%s: a new connection was made %v after a policy denied it", node, delay)
	}
	return delay
}

// deleteLast deletes the last rule of the engine's chain. To list thousands of rules takes nft minutes on a busy
// machine.
func (w *world) deleteLast(node string) {
	w.t.Helper()
	var handle uint64
	w.must(w.Host(node).Do(func() error {
		c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
		if err != nil {
			return err
		}
		defer c.Close()
		e := netlink.NewAttributeEncoder()
		e.String(unix.NFTA_RULE_TABLE, "engine")
		e.String(unix.NFTA_RULE_CHAIN, "forward")
		names, err := e.Encode()
		if err != nil {
			return err
		}
		rules, err := c.Execute(netlink.Message{
			Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETRULE, Flags: netlink.Request | netlink.Dump},
			Data:   append([]byte{unix.NFPROTO_INET, 0, 0, 0}, names...),
		})
		if err != nil {
			return err
		}
		d, err := netlink.NewAttributeDecoder(rules[len(rules)-1].Data[4:])
		if err != nil {
			return err
		}
		d.ByteOrder = binary.BigEndian
		for d.Next() {
			if d.Type() == unix.NFTA_RULE_HANDLE {
				handle = d.Uint64()
			}
		}
		return d.Err()
	}))
	w.run(node, "nft", "delete", "rule", "inet", "engine", "forward", "handle", fmt.Sprint(handle))
}

// awaitPath waits until the pods of node-a have the shortcut.
func (w *world) awaitPath(node, from, to string) {
	w.t.Helper()
	if node == "node-a" {
		w.eventually(from+" and "+to+" have the shortcut", func() bool {
			return w.hasShortcut(from) && (w.Host(to).Node.Name != node || w.hasShortcut(to))
		})
	}
}

// wantShortcutMeanwhile checks that pods of node-a have the shortcut most of the time once the rules have been read,
// and logs how much of a CPU the agent uses.
func (w *world) wantShortcutMeanwhile(names ...string) {
	w.t.Helper()
	const settled, lasting, step = time.Second, 4 * time.Second, 20 * time.Millisecond
	bpffs := w.agents["node-a"].BPFFS()
	on := func() bool {
		rows := table[bpf.Address, shortcut.Row](w, bpffs, bpf.PodMapPods)
		return !slices.ContainsFunc(names, func(name string) bool {
			row, ok := rows[bpf.AddressFrom(w.Host(name).Addr4)]
			return !ok || row.Withheld != 0
		})
	}
	since := time.Now()
	w.eventually("the pods have the shortcut for a second", func() bool {
		if !on() {
			since = time.Now()
		}
		return time.Since(since) > settled
	})
	has, all := 0, 0
	used, begin := w.cpuTime(w.agents["node-a"].PID()), time.Now()
	for ; time.Since(begin) < lasting; time.Sleep(step) {
		if all++; on() {
			has++
		}
	}
	w.t.Logf("%v have the shortcut in %d of %d looks; the agent uses %.1f %% of a CPU", names, has, all,
		100*(w.cpuTime(w.agents["node-a"].PID())-used).Seconds()/time.Since(begin).Seconds())
	if has*2 < all {
		w.t.Errorf("%v have the shortcut in %d of %d looks while pods come and go", names, has, all)
	}
}

// cpuTime is how much time of CPUs a process has used.
func (w *world) cpuTime(pid int) time.Duration {
	w.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	w.must(err)
	_, after, _ := strings.Cut(string(text), ") ")
	const user, system, tick = 11, 12, 10 * time.Millisecond // USER_HZ is 100
	ticks := 0
	for _, i := range []int{user, system} {
		n, err := strconv.Atoi(strings.Fields(after)[i])
		w.must(err)
		ticks += n
	}
	return time.Duration(ticks) * tick
}

// load has nft read a file, which may be long.
func (w *world) load(host, rules string) {
	w.t.Helper()
	file := filepath.Join(w.t.TempDir(), "rules")
	w.must(os.WriteFile(file, []byte(rules), 0o600))
	w.run(host, "nft", "-f", file)
}

// hasShortcut reports whether the packets of a pod of node-a take the shortcut.
func (w *world) hasShortcut(pod string) bool {
	for _, d := range w.pods("node-a").Devices {
		if d.Name == pod {
			return d.Shortcut && len(d.WaitingAddresses) == 0
		}
	}
	return false
}

// A pod that answers for thousands of addresses behind a bridge gets 64 of them, a condition names its device, and
// neither pods nor policies wait for it.
func TestAddressFlood(t *testing.T) {
	w := newWorld(t, lab.Shape{Pods: lab.PodsBridge}, "--pod-devices=auto")
	w.must(w.agents["node-a"].Start())
	w.meetPods()
	w.awaitPods("node-a", "a1", "a2", "a3")
	own := w.device("a1", "eth0").MAC
	mac := net.HardwareAddr(own[:])
	var add, remove strings.Builder
	for i := range 3000 {
		// Permanent entries do not count against the limit of the host (gc_thresh3).
		fmt.Fprintf(&add, "neigh replace 10.10.1.%d lladdr %s dev %s nud permanent\n", 64+i%128, mac, lab.BridgeDevice)
		fmt.Fprintf(&add, "neigh replace fd00:10:1::f:%x lladdr %s dev %s nud permanent\n", i, mac, lab.BridgeDevice)
		fmt.Fprintf(&remove, "neigh del fd00:10:1::f:%x dev %s\n", i, lab.BridgeDevice)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var flood sync.WaitGroup
	defer flood.Wait()
	defer cancel()
	flood.Go(func() {
		for ctx.Err() == nil {
			cmd := w.Host("node-a").Command(ctx, "ip", "-force", "-batch", "-")
			cmd.Stdin = strings.NewReader(add.String() + remove.String() + add.String())
			_ = cmd.Run()
		}
	})
	text := ""
	defer func() {
		if t.Failed() {
			t.Log(text)
		}
	}()
	w.eventually("a condition names the device", func() bool {
		text, _ = w.agents["node-a"].CLI("status", "-v") // which fails, as a warning is there
		return strings.Contains(text, "PodAddressLimit: a1")
	})
	w.policyDelays(policyChanges(0)[0], "node-a", "a2", "b2", 3) // pods of a bridge do not pass these rules
	if rows := len(table[bpf.Address, shortcut.Row](w, w.agents["node-a"].BPFFS(), bpf.PodMapPods)); rows > 64+4 {
		t.Errorf("the table has %d rows", rows)
	}
	w.must(w.Unplug(w.Host("node-a"), w.Host("a3")))
	w.plug("a3", "node-a", "a3")
	w.meet("node-a", "a3")
	w.awaitPods("node-a", "a2", "a3")
}

// churn has a pod of a node come or go, and the engine add or delete its rules, twice a second until ctx ends.
func (w *world) churn(ctx context.Context, node string) {
	here := true
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	step := func(text string) {
		// What another step has removed may be missing: the engine may just write its rules anew.
		_ = w.Host(node).Command(context.Background(), "sh", "-c", text).Run()
	}
	for here || ctx.Err() == nil {
		if here = !here; here {
			step("ip link del churn; nft 'delete element inet engine pods { 10.10.1.99 }; delete chain inet engine pod'")
		} else {
			step(fmt.Sprintf("ip link add churn type veth peer name churn0 netns %s && ip link set churn up && ip route add 10.10.1.99 dev churn; "+
				"nft 'add chain inet engine pod; add rule inet engine pod ip saddr 10.10.77.3 accept; add element inet engine pods { 10.10.1.99 : jump pod }'",
				netnsName(w.Host(strings.TrimPrefix(node, "node-")+"3"))))
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// A dialer makes connections of a pod to another one, 20 a second.
type dialer struct {
	mu   sync.Mutex
	last time.Time // when the last one that was made began
}

const dialInterval = 50 * time.Millisecond

// run dials until ctx ends.
func (d *dialer) run(ctx context.Context, from *lab.Host, to netip.AddrPort) {
	var all sync.WaitGroup
	defer all.Wait()
	tick := time.NewTicker(dialInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		all.Go(func() {
			begin := time.Now()
			dialing, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
			defer cancel()
			conn, err := from.Dial(dialing, "tcp", to.String())
			if err != nil {
				return
			}
			conn.Close()
			d.mu.Lock()
			defer d.mu.Unlock()
			if begin.After(d.last) {
				d.last = begin
			}
		})
	}
}

func (d *dialer) lastMade() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.last
}
