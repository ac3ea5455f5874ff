// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// followed is a table in which each change of a random walk may matter.
const followed = `table inet t {
	set s { type ipv4_addr; elements = { 10.10.1.2 }; }
	set i { type ipv4_addr; flags interval; elements = { 10.10.1.4-10.10.1.5 }; }
	map m { type ipv4_addr : verdict; elements = { 10.10.1.3 : jump b }; }
	chain a { ip saddr @s drop; }
	chain b { ip daddr @i reject; }
	chain d { }
	chain c { type filter hook forward priority 0; jump a; ip saddr vmap @m; }
	chain p { type filter hook postrouting priority 0; }
}
`

// randomChange is a transaction of nft. Some fail, as what they name is not there.
func randomChange(r *rand.Rand) string {
	pick := func(of ...string) string { return of[r.IntN(len(of))] }
	address := fmt.Sprintf("10.10.1.%d", 2+r.IntN(6))
	chain, hook := pick("a", "b", "c", "d", "e"), fmt.Sprintf("q%d", r.IntN(100))
	rule := pick("ip saddr "+address+" drop", "ip saddr @s drop", "ip daddr @i accept", "ip saddr vmap @m", "jump d", "goto a", "ip daddr "+address+" return", "counter", "ip saddr { 10.10.1.3, "+address+" } reject", "iifname cali2 accept", "ct state established accept")
	return pick(
		"add rule inet t "+chain+" "+rule, "add rule inet t "+chain+" "+rule, "insert rule inet t "+chain+" "+rule,
		"insert rule inet t "+chain+" index 1 "+rule, "add rule inet t "+chain+" index 0 "+rule,
		"flush chain inet t "+chain, "flush chain inet t "+chain+"\nadd rule inet t "+chain+" "+rule,
		"delete rule inet t "+chain+" handle HANDLE", "replace rule inet t "+chain+" handle HANDLE "+rule,
		"add element inet t s { "+address+" }", "delete element inet t s { "+address+" }", "flush set inet t s",
		"add element inet t i { "+address+" }", "flush set inet t i", "add element inet t m { "+address+" : "+pick("drop", "jump a", "jump b", "accept")+" }",
		"delete element inet t m { "+address+" }", "flush map inet t m",
		"rename chain inet t a x\nadd chain inet t a\nadd rule inet t a "+rule, "rename chain inet t x y", "rename chain inet t d e", "rename chain inet t e d",
		"add chain inet t e\nadd rule inet t c jump e\nadd rule inet t e "+rule, "add chain inet t c { policy "+pick("drop", "accept")+"; }",
		"delete chain inet t p", "add chain inet t p { type filter hook postrouting priority 0; }\nadd rule inet t p "+rule,
		"add chain inet t "+hook+" { type filter hook forward priority 2; }\nadd rule inet t "+hook+" "+rule,
		"add table inet t { flags dormant; }", "add table inet t", "delete table inet t\n"+followed, "flush table inet t\n"+followed,
		"add table ip u\nadd chain ip u f { type filter hook forward priority 1; }\nadd rule ip u f ip daddr "+address+" drop", "delete table ip u",
	)
}

// change makes a random change. Handles are those of rules that exist.
func change(r *rand.Rand) string {
	text := randomChange(r)
	if strings.Contains(text, "HANDLE") {
		chain := strings.Fields(text)[4]
		out, _ := exec.Command("nft", "-a", "list", "chain", "inet", "t", chain).Output()
		var handles []string
		for _, line := range strings.Split(string(out), "\n") {
			if _, handle, ok := strings.Cut(line, "# handle "); ok && !strings.Contains(line, "chain ") {
				handles = append(handles, handle)
			}
		}
		if len(handles) == 0 {
			return ""
		}
		text = strings.ReplaceAll(text, "HANDLE", handles[r.IntN(len(handles))])
	}
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(text + "\n")
	if cmd.Run() != nil {
		return ""
	}
	return text
}

// A finder that reads only what events name finds the same as one that reads everything, after each of many changes;
// and Wait reports each change that has another result.
func TestFollow(t *testing.T) {
	changes := 1500
	if testing.Short() {
		changes = 300
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	inNamespace(t, func() {
		load(t, followed, "nft", "-f", "-")
		var f Finder
		if err := f.Follow(); err != nil {
			t.Error(err)
			return
		}
		ctx, cancel := context.WithCancel(context.Background())
		woken, ended := make(chan bool, 1), make(chan error)
		go func() {
			var err error
			for err == nil {
				err = f.Wait(ctx)
				select {
				case woken <- true:
				default:
				}
			}
			ended <- err
		}()
		s := subject()
		last, reported, texts, made := found(t, &f, s), false, []string{}, 0
		for range changes {
			text := change(r)
			if text == "" {
				continue
			}
			made++
			texts = append(texts, text)
			want := found(t, &Finder{}, s)
			if want != last && !reported {
				select {
				case <-woken:
					reported = true
				case <-time.After(10 * time.Second):
					t.Errorf("Wait has not reported %q", text)
				}
			}
			if r.IntN(3) == 0 { // as if the search came later
				continue
			}
			if last = found(t, &f, s); last != want {
				t.Errorf("after %q:\n%s\nfound\n%s\nwant\n%s", text, strings.Join(texts, "\n"), last, want)
				break
			}
			reported = false
			select {
			case <-woken:
			default:
			}
		}
		t.Logf("%d changes", made)
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Wait ended with %v", err)
		}
	})
}

// Where a rule is in its chain follows from the events, or the chain is read again: each change leaves a rule that
// accepts before one that drops, so that a wrong order has another result.
func TestFollowKeepsOrder(t *testing.T) {
	const accept, drop = "ip saddr 10.10.1.2 accept", "ip saddr 10.10.1.2 drop"
	for _, change := range []string{
		"replace rule inet t c handle FIRST " + accept + " comment \"new\"",
		"insert rule inet t c " + accept + "\ndelete rule inet t c handle FIRST",
		"insert rule inet t c " + accept + "\ninsert rule inet t c counter\ndelete rule inet t c handle FIRST",
		"add rule inet t c handle FIRST " + accept + "\ndelete rule inet t c handle FIRST",
		"add rule inet t c handle FIRST counter\nadd rule inet t c handle FIRST " + accept + "\ndelete rule inet t c handle FIRST",
		"flush chain inet t c\nadd rule inet t c " + accept + "\nadd rule inet t c " + drop,
		"delete rule inet t c handle FIRST\ninsert rule inet t c " + accept,
	} {
		inNamespace(t, func() {
			load(t, "table inet t {\nchain c { type filter hook forward priority 0; "+accept+"\n"+drop+"\ncounter\n}\n}\n", "nft", "-f", "-")
			var f Finder
			if err := f.Follow(); err != nil {
				t.Error(err)
				return
			}
			if got := found(t, &f, subject()); got != "" {
				t.Errorf("found %q before", got)
			}
			first := f.nft.tables[tableKey{familyInet, "t"}].chains["c"].rules[0].handle
			load(t, strings.ReplaceAll(change, "FIRST", fmt.Sprint(first))+"\n", "nft", "-f", "-")
			if got, want := found(t, &f, subject()), found(t, &Finder{}, subject()); got != want || want != "" {
				t.Errorf("after %q: found %q, a finder that reads everything %q", change, got, want)
			}
		})
	}
}

// An element that times out is a change, which no event reports.
func TestFollowTimeout(t *testing.T) {
	inNamespace(t, func() {
		load(t, `table ip t {
			set s { type ipv4_addr; flags timeout; elements = { 10.10.1.2 timeout 1s, 10.10.1.3 timeout 1h }; }
			chain c { type filter hook forward priority 0; ip saddr @s drop; }
		}`, "nft", "-f", "-")
		var f Finder
		if err := f.Follow(); err != nil {
			t.Error(err)
			return
		}
		begin := time.Now()
		for _, want := range []string{"12 rule c ip t: drop", "2 rule c ip t: drop"} {
			if got := found(t, &f, subject()); got != want {
				t.Errorf("found %q after %v, want %q", got, time.Since(begin), want)
			}
			ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
			err := f.Wait(ctx)
			for err == nil && time.Since(begin) < 900*time.Millisecond { // what was before Follow
				err = f.Wait(ctx)
			}
			cancel()
			if first := want == "12 rule c ip t: drop"; (err == nil) != first {
				t.Errorf("Wait after %v: %v", time.Since(begin), err)
			}
		}
	})
}

// The work of a search grows with the number of rules and of elements, and not faster; and it still finds the rule
// behind them that matters.
func TestManyRules(t *testing.T) {
	const many = 10000
	element := func(i int) string { return fmt.Sprintf("10.10.%d.%d", 2+i%200, 1+i/200*2) }
	var elements, rules strings.Builder
	for i := range many {
		fmt.Fprintf(&elements, "%s : jump x, ", element(i))
		fmt.Fprintf(&rules, "ip saddr %s accept\n", element(i))
	}
	for name, chain := range map[string]string{
		"elements of a map": "map m { type ipv4_addr : verdict; elements = { " + elements.String() + " }; }\nchain c { type filter hook forward priority 0; ip saddr vmap @m; ip saddr 10.10.1.2 drop; }",
		"rules that accept": "chain c { type filter hook forward priority 0; " + rules.String() + "ip saddr 10.10.1.2 drop; }",
	} {
		inNamespace(t, func() {
			load(t, "table ip t { chain x { counter; }\n"+chain+"\n}\n", "nft", "-f", "-")
			before := processTime()
			if got, want := found(t, &Finder{}, subject()), "1 rule c ip t: drop"; got != want {
				t.Errorf("%d %s: found %q, want %q", many, name, got, want)
			}
			if used := processTime() - before; used > 1200*time.Millisecond {
				t.Errorf("%d %s: the search has used %v of a CPU", many, name, used)
			}
		})
	}
}

// With many rules about pods of other nodes a search costs a fraction of what reading them costs, whatever has changed:
// a rule, an element of a map, or the pods of the node. It finds the same as one that reads everything.
func TestSearchesAfterChanges(t *testing.T) {
	rules, turns := 20000, 5
	if testing.Short() {
		rules = 5000
	}
	var b strings.Builder
	b.WriteString("table inet t {\nmap m { type ipv4_addr : verdict; }\nchain x { ip saddr 10.10.77.3 drop; }\nchain c { type filter hook forward priority 0; ct state established accept; ip daddr vmap @m\n")
	for i := range rules {
		fmt.Fprintf(&b, "ip saddr 10.10.%d.%d ip daddr 10.10.%d.%d tcp dport %d drop\n", 100+i%50, 1+i/50%250, 151+i%30, 1+i%250, 1+i%60000)
	}
	b.WriteString("}\n}\n")
	s := subject()
	for i := range 100 {
		s.Devices = append(s.Devices, Device{Index: 200 + i, Name: fmt.Sprintf("cali2%d", i), Pods: []netip.Addr{netip.AddrFrom4([4]byte{10, 10, 2, byte(i)}), netip.MustParseAddr(fmt.Sprintf("fd00:10:2::%x", i))}})
	}
	inNamespace(t, func() {
		load(t, b.String(), "nft", "-f", "-")
		var f Finder
		if err := f.Follow(); err != nil {
			t.Error(err)
			return
		}
		used := func(f *Finder) time.Duration {
			before := processTime()
			found(t, f, s)
			return processTime() - before
		}
		all := used(&Finder{})
		used(&f)
		w, err := NewWatcher()
		if err != nil {
			t.Error(err)
			return
		}
		defer w.Close()
		uplink := []Device{{Index: 105, Name: "eth0"}}
		usedByWatcher := func(backends ...netip.Addr) time.Duration {
			before := processTime()
			if _, err := w.FindForEdge(EdgeSubject{Devices: uplink, Backends: backends}); err != nil {
				t.Error(err)
			}
			return processTime() - before
		}
		usedByWatcher(netip.MustParseAddr("10.10.200.1"))
		for _, change := range []struct {
			name string
			make func(turn int)
		}{
			{"a rule is added", func(turn int) {
				load(t, fmt.Sprintf("add rule inet t c ip saddr 10.10.2.%d drop\n", turn), "nft", "-f", "-")
			}},
			{"a rule is inserted", func(turn int) {
				load(t, fmt.Sprintf("insert rule inet t c index 100 ip saddr 10.10.2.%d drop\n", 10+turn), "nft", "-f", "-")
			}},
			{"an element is added", func(turn int) {
				load(t, fmt.Sprintf("add element inet t m { 10.10.77.%d : jump x }\n", turn), "nft", "-f", "-")
			}},
			{"a chain of a pod comes or goes", func(turn int) {
				if turn%2 == 0 {
					load(t, "add chain inet t pod; add rule inet t pod ip saddr 10.10.77.3 accept; add element inet t m { 10.10.1.99 : jump pod }\n", "nft", "-f", "-")
				} else {
					load(t, "delete element inet t m { 10.10.1.99 }; delete chain inet t pod\n", "nft", "-f", "-")
				}
			}},
			{"a pod comes", func(turn int) {
				s.Devices = append(s.Devices, Device{Index: 400 + turn, Name: fmt.Sprintf("cali4%d", turn), Pods: []netip.Addr{netip.AddrFrom4([4]byte{10, 10, 4, byte(turn)})}})
			}},
		} {
			var sum, sumOfWatcher time.Duration
			for turn := range turns {
				change.make(turn)
				sum += used(&f)
				sumOfWatcher += usedByWatcher(netip.MustParseAddr("10.10.200.1"))
			}
			t.Logf("%s: that for the edge uses %v", change.name, sumOfWatcher/time.Duration(turns))
			if sumOfWatcher/time.Duration(turns) > all/10 {
				t.Errorf("%s: a search for the edge uses %v of a CPU", change.name, sumOfWatcher/time.Duration(turns))
			}
			if got, want := found(t, &f, s), found(t, &Finder{}, s); got != want {
				t.Errorf("%s: found\n%s\nwant\n%s", change.name, got, want)
			}
			t.Logf("%s: a search uses %v of a CPU; that of a new finder %v", change.name, sum/time.Duration(turns), all)
			if sum/time.Duration(turns) > all/10 {
				t.Errorf("%s: a search uses %v of a CPU, one that reads everything %v", change.name, sum/time.Duration(turns), all)
			}
		}
	})
}

func processTime() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// What is deleted is forgotten: engines name chains and sets after pods, which come and go.
func TestFollowForgets(t *testing.T) {
	inNamespace(t, func() {
		load(t, followed, "nft", "-f", "-")
		var f Finder
		if err := f.Follow(); err != nil {
			t.Error(err)
			return
		}
		found(t, &f, subject())
		c := &f.nft.changes
		size := func() string { return fmt.Sprint(len(c.known), len(c.chains), len(c.bases)) }
		before := size()
		for i := range 5 {
			load(t, fmt.Sprintf(`table inet t {
				set s%[1]d { type ipv4_addr; }
				set a { type ipv4_addr; }
				chain pod%[1]d { ip saddr @s%[1]d drop; }
				chain base%[1]d { type filter hook forward priority 3; ip saddr { 10.10.1.2, 10.10.1.7 } jump pod%[1]d; }
			}`, i), "nft", "-f", "-")
			found(t, &f, subject())
			if !c.known[objectKey{tableKey{familyInet, "t"}, "a", false}] {
				t.Error("a chain was forgotten as a set of its name was deleted")
			}
			if size() == before {
				t.Error("what was added was not read")
			}
			load(t, fmt.Sprintf("delete chain inet t base%[1]d\ndelete chain inet t pod%[1]d\ndelete set inet t s%[1]d\ndelete set inet t a\n", i), "nft", "-f", "-")
			found(t, &f, subject())
		}
		if got := size(); got != before {
			t.Errorf("%s chains and sets are known, before they came and went: %s", got, before)
		}
	})
}

// What `nft destroy` has deleted is an event of its own kind (Linux 6.3).
func TestDestroyEvents(t *testing.T) {
	const destroyTable, destroyChain = 26, 27
	event := func(kind int, table string) []byte {
		r := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|kind, 0)
		r.AddData(&nl.Nfgenmsg{NfgenFamily: familyInet, Version: nl.NFNETLINK_V0})
		r.AddData(nl.NewRtAttr(unix.NFTA_TABLE_NAME, nl.ZeroTerminated(table)))
		return r.Serialize()
	}
	own, gone := []string{"inet own"}, false
	if concerns(event(destroyTable, "own"), own, &gone) || !gone {
		t.Error("the table of the watcher was destroyed, and it does not know")
	}
	gone = false
	if !concerns(event(destroyChain, "t"), own, &gone) || gone {
		t.Error("a chain of another table was destroyed")
	}
	c := changes{known: map[objectKey]bool{{tableKey{familyInet, "t"}, "", false}: true}}
	if c.add(event(destroyChain, "t")); !c.relevant || c.named.all || len(c.named.chains) != 1 {
		t.Errorf("a chain was destroyed: %+v", &c.named)
	}
}
