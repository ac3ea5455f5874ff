// SPDX-License-Identifier: Apache-2.0

package needs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

var (
	// SockDestroy ends sockets from a socket iterator.
	SockDestroy = feature("bpf_sock_destroy (Linux 6.5)", func() (bool, error) { return hasSymbol("bpf_sock_destroy") })
	// Flowtable is nftables' flowtable.
	Flowtable = feature("flowtables (CONFIG_NF_FLOW_TABLE_INET, CONFIG_NFT_FLOW_OFFLOAD)", acceptsFlowtable)
	// Replacement are programs that replace a function of another one. Some kernels have them, but do not allow
	// them.
	Replacement = feature("programs that replace functions (freplace)", acceptsReplacement)
	// MarkedLookups are route look-ups of programs by the mark of a packet.
	MarkedLookups = feature("BPF_FIB_LOOKUP_MARK (Linux 6.10)", func() (bool, error) { return hasTypeName("BPF_FIB_LOOKUP_MARK") })
	// NetfilterHooks lists the functions at the hooks of netfilter.
	NetfilterHooks = feature("nfnetlink_hook (CONFIG_NETFILTER_NETLINK_HOOK)", listsHooks)
	// SummedTestRuns are test runs of programs on packets that a device has summed up (CHECKSUM_COMPLETE).
	SummedTestRuns = feature("BPF_F_TEST_SKB_CHECKSUM_COMPLETE (Linux 6.17, and newer 6.1 and 6.12)", sumsUp)
	// Sockmap lets messages skip TCP to any program that reads.
	Sockmap = feature("sockmap that counts for SIOCINQ what skips TCP and what does not", countsForSockmap)
)

// hasSymbol looks for a function of the kernel or of a loaded module.
func hasSymbol(name string) (bool, error) {
	all, err := os.ReadFile("/proc/kallsyms")
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(all)) {
		if f := strings.Fields(line); len(f) > 2 && f[2] == name {
			return true, nil
		}
	}
	return false, nil
}

// hasTypeName looks for a name in the strings of the kernel's BTF.
func hasTypeName(name string) (bool, error) {
	all, err := os.ReadFile("/sys/kernel/btf/vmlinux")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, err
	}
	return bytes.Contains(all, []byte("\x00"+name+"\x00")), nil
}

// acceptsFlowtable has nft(8) use a flowtable in a network namespace of its own. The same rules without the flowtable
// have to be accepted: else the fault is another one.
func acceptsFlowtable() (bool, error) {
	const chain = "add table inet t; add chain inet t c { type filter hook forward priority 0; }"
	if out, err := nft(chain); err != nil {
		return false, fmt.Errorf("nft %q: %w: %s", chain, err, out)
	}
	_, err := nft(chain + "; add flowtable inet t f { hook ingress priority 0; devices = { lo }; }; add rule inet t c flow add @f")
	return err == nil, nil
}

func nft(commands string) (string, error) {
	out, err := exec.Command("unshare", "--net", "nft", commands).CombinedOutput()
	return string(out), err
}

// acceptsReplacement loads a program, and another that replaces its function.
func acceptsReplacement() (bool, error) {
	target, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "target", Type: ebpf.XDP, License: "GPL", Instructions: function("target")})
	if err != nil {
		return false, err
	}
	defer target.Close()
	other, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "other", Type: ebpf.Extension, License: "GPL", AttachTarget: target, AttachTo: "target", Instructions: function("other")})
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, other.Close()
}

// function is `int name(struct xdp_md *packet) { return XDP_PASS; }`.
func function(name string) asm.Instructions {
	const xdpPass = 2
	integer := &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed}
	packet := &btf.Pointer{Target: &btf.Struct{Name: "xdp_md", Size: 24}}
	f := &btf.Func{Name: name, Linkage: btf.GlobalFunc, Type: &btf.FuncProto{Return: integer, Params: []btf.FuncParam{{Name: "packet", Type: packet}}}}
	return asm.Instructions{btf.WithFuncMetadata(asm.Mov.Imm(asm.R0, xdpPass).WithSymbol(name), f), asm.Return()}
}

// listsHooks asks for the functions at one hook (linux/netfilter/nfnetlink_hook.h). The kernel says that a request of a
// part of netfilter that it does not have is invalid.
func listsHooks() (bool, error) {
	const subsystem, get, attributeHook, attributePriority, prerouting = 12, 0, 1, 2, 0
	request := nl.NewNetlinkRequest(subsystem<<8|get, unix.NLM_F_DUMP)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_INET, Version: nl.NFNETLINK_V0})
	request.AddData(nl.NewRtAttr(attributeHook, []byte{0, 0, 0, prerouting}))
	request.AddData(nl.NewRtAttr(attributePriority, make([]byte, 4)))
	_, err := request.Execute(unix.NETLINK_NETFILTER, 0)
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EOPNOTSUPP):
		return false, nil
	case errors.Is(err, unix.ENOENT): // nothing is at the hook
		return true, nil
	}
	return err == nil, err
}

// sumsUp runs a program with the flag.
func sumsUp() (bool, error) {
	const checksumComplete = 1 << 2
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
	if err != nil {
		return false, err
	}
	defer p.Close()
	_, err = p.Run(&ebpf.RunOptions{Data: make([]byte, 64), Flags: checksumComplete})
	if errors.Is(err, unix.EINVAL) {
		return false, nil
	}
	return err == nil, err
}
