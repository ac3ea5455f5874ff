// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	ebpflink "github.com/cilium/ebpf/link"

	"beeline.io/beeline/test/needs"
)

// A BPF program at a hook is a filter while it is attached, found by the functions at the hooks and by the IDs of
// links. What the kernel itself has there for all kinds of rules is none.
func TestFunctionsAtHooks(t *testing.T) {
	// Without, the tests of other packages would find the program, too, which have other namespaces.
	needs.Kernel(t, needs.NetfilterHooks)
	inNamespace(t, func() {
		load(t, `table inet t {
			chain a { type filter hook prerouting priority -300; notrack; }
			chain b { type filter hook forward priority 0; ct state invalid drop; }
			chain c { type nat hook postrouting priority 100; oifname docker0 masquerade; }
			chain d { type nat hook prerouting priority -100; ip daddr 192.0.2.1 dnat to 10.99.0.1; }
		}
		table bridge t { chain c { type filter hook forward priority 0; }; }
		`, "nft", "-f", "-")
		for _, tool := range []string{"iptables-legacy-restore", "ip6tables-legacy-restore"} {
			load(t, "*filter\nCOMMIT\n*mangle\nCOMMIT\n*nat\nCOMMIT\n*raw\nCOMMIT\n", tool)
		}
		f, p := &Finder{}, &programs{}
		if got := found(t, f, subject()); got != "" {
			t.Errorf("without a program: found\n%s", got)
		}
		l, err := attachNetfilter()
		if err != nil {
			t.Error(err)
			return
		}
		for name, read := range map[string]func() ([]base, error){"functions": readHooks, "links": p.read} {
			all, err := read()
			if err != nil || len(all) != 1 || all[0].hook != forward || all[0].family != familyIPv4 || all[0].priority != 7 {
				t.Errorf("%s: %+v, %v; want one at forward of IPv4 with priority 7", name, all, err)
			}
		}
		f.othersTime = f.othersTime.Add(-othersAge)
		if got := found(t, f, subject()); !strings.HasPrefix(got, "1234 BPF program") || !strings.Contains(got, "at forward of netfilter") {
			t.Errorf("found\n%s", got)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if all, err := p.read(); err != nil || len(all) > 0 {
			t.Errorf("after its end: %+v, %v", all, err)
		}
		f.othersTime = f.othersTime.Add(-othersAge)
		if got := found(t, f, subject()); got != "" {
			t.Errorf("after its end: found\n%s", got)
		}
	})
}

// attachNetfilter attaches a program that drops all forwarded packets of IPv4.
func attachNetfilter() (ebpflink.Link, error) {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "drops", Type: ebpf.Netfilter, AttachType: ebpf.AttachNetfilter, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
	if err != nil {
		return nil, err
	}
	defer p.Close()
	return ebpflink.AttachNetfilter(ebpflink.NetfilterOptions{Program: p, ProtocolFamily: ebpflink.NetfilterProtoIPv4, Hook: ebpflink.NetfilterInetForward, Priority: 7})
}

// A function at a hook that is not known is a filter, whoever has it there.
func TestUnknownFunctions(t *testing.T) {
	of := func(name, module string) attributes {
		return attributes{hookFunctionName: []byte(name + "\x00"), hookModuleName: []byte(module + "\x00"), hookPriority: {0, 0, 0, 9}}
	}
	for _, c := range []struct{ name, module, want string }{
		{"nft_do_chain_inet", "nf_tables", ""},
		{"ebt_out_hook", "ebtable_filter", "function ebt_out_hook of module ebtable_filter at forward of netfilter"},
		{"nf_hook_run_bpf", "", "BPF program at forward of netfilter"},
	} {
		b, ok := unknownFunction(of(c.name, c.module), forward)
		if ok != (c.want != "") || ok && (b.table.title("", "") != c.want || b.priority != 9) {
			t.Errorf("%s: %+v, %t; want %q", c.name, b, ok, c.want)
		}
	}
}
