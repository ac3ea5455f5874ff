// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"net"
	"testing"
	"time"
)

// A Watcher notices each change of rules, and neither its own tables nor what packets change.
func TestWatcher(t *testing.T) {
	const table = "table ip t {\nset seen { type ipv4_addr; size 16; flags dynamic; }\nchain c {\ntype filter hook output priority 0\nupdate @seen { ip daddr } counter\n}\n}\n"
	inNamespace(t, func() {
		load(t, "link set lo up\n", "ip", "-batch", "-")
		w, err := NewWatcher("inet own")
		if err != nil {
			t.Error(err)
			return
		}
		defer w.Close()
		for _, step := range []struct {
			name, tool, rules string
			want              bool
		}{
			{"nothing", "", "", false},
			{"table", "nft", table, true},
			{"once", "", "", false},
			{"rule", "nft", "add rule ip t c counter\n", true},
			{"packets that update a set", "packet", "", false},
			{"element", "nft", "add element ip t seen { 10.0.0.1 }\n", true},
			{"own table", "nft", "table inet own {\nchain c {\ntype filter hook forward priority 0\ndrop\n}\n}\n", false},
			{"own rule", "nft", "add rule inet own c counter\n", false},
			{"own table, created again at once", "nft", "delete table inet own\ntable inet own {\n}\n", false},
			{"own table, deleted", "nft", "delete table inet own\n", true},
			{"own table again", "nft", "table inet own {\nchain c {\n}\n}\n", false},
			{"a table named as its own in another family", "nft", "table ip own {\n}\n", true},
			{"its own and another at once", "nft", "add rule inet own c counter\nadd rule ip t c counter\nadd rule inet own c counter\n", true},
			{"iptables", "iptables-nft-restore", "*filter\n-A FORWARD -j DROP\nCOMMIT\n", true},
			{"iptables-legacy", "iptables-legacy-restore", "*filter\n-A FORWARD -s 10.0.0.1 -j DROP\nCOMMIT\n", true},
			{"iptables-legacy, other rules, which are not read either", "iptables-legacy-restore", "*filter\n-A FORWARD -s 10.0.0.2 -j DROP\nCOMMIT\n", false},
			{"iptables-legacy, no rules", "iptables-legacy-restore", "*filter\nCOMMIT\n", true},
			{"flush", "nft", "flush ruleset\n", true},
		} {
			switch step.tool {
			case "":
			case "packet":
				sendDatagram(t)
			case "nft":
				load(t, step.rules, "nft", "-f", "-")
			default:
				load(t, step.rules, step.tool)
				time.Sleep(othersAge)
			}
			if changed, err := w.Changed(); err != nil || changed != step.want {
				t.Errorf("%s: changed %t, want %t; error %v", step.name, changed, step.want, err)
			}
		}
	})
}

func sendDatagram(t *testing.T) {
	t.Helper()
	c, err := net.Dial("udp4", "127.0.0.1:9")
	if err == nil {
		defer c.Close()
		_, err = c.Write([]byte("x"))
	}
	if err != nil {
		t.Error(err)
	}
}

// A Watcher finds what the rules are after a change, and again without what is gone.
func TestWatcherFinds(t *testing.T) {
	inNamespace(t, func() {
		w, err := NewWatcher()
		if err != nil {
			t.Error(err)
			return
		}
		defer w.Close()
		for _, step := range []struct {
			rules string
			want  int
		}{
			{"table ip t {\nchain c {\ntype filter hook forward priority 0\ncounter log\n}\n}\n", 1},
			{"add rule ip t c limit rate 1/second\n", 2},
			{"flush ruleset\n", 0},
		} {
			load(t, step.rules, "nft", "-f", "-")
			if found, err := w.Find(offloadDevices); err != nil || len(found.All) != step.want {
				t.Errorf("after %q: found %+v, %v", step.rules, found, err)
			}
		}
	})
}

// BenchmarkWatcher is the cost of noticing that nothing has changed.
func BenchmarkWatcher(b *testing.B) {
	inNamespace(b, func() {
		load(b, "table ip t {\nchain c {\ntype filter hook forward priority 0\ncounter log\n}\n}\n", "nft", "-f", "-")
		w, err := NewWatcher()
		if err != nil {
			b.Error(err)
			return
		}
		defer w.Close()
		for b.Loop() {
			if changed, err := w.Changed(); err != nil || changed {
				b.Errorf("changed %t, %v", changed, err)
			}
		}
	})
}
