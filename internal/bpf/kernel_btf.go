// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"sync"
	"sync/atomic"

	"github.com/cilium/ebpf/btf"
)

// KernelBTF returns the kernel's BTF for loading programs; nil if it is not cached.
func KernelBTF() *btf.Cache { return kernelBTF.Load() }

// KernelHas reports whether the kernel has one of the features that its BTF shows.
func KernelHas(feature string) bool { return kernelHas()[feature] }

// HaveSockDestroy reports whether the kernel has bpf_sock_destroy (Linux 6.5).
func HaveSockDestroy() bool { return kernelHas()[sockDestroy] }

// Features that the kernel's BTF shows.
const (
	kernelTypes    = "types"
	socketIterator = "bpf_iter_udp"
	sockDestroy    = "bpf_sock_destroy"
	// These are in the BTF of the module nf_conntrack, unless that is part of the kernel.
	ConntrackLookup  = "bpf_skb_ct_lookup"
	ConntrackTimeout = "bpf_ct_change_timeout"
	// The kernel has no BTF of modules to read.
	withoutModules = "no modules"
)

// conntrackInsertion are the functions of nf_conntrack that add an entry.
var conntrackInsertion = []string{"bpf_skb_ct_alloc", "bpf_xdp_ct_alloc", "bpf_ct_insert_entry", "bpf_ct_set_timeout", "bpf_ct_set_status"}

// kernelBTF is the kernel's BTF, for loading programs between kernelHas and Attach: reading it takes some
// MiB and 15 ms. Nil: not cached.
var kernelBTF atomic.Pointer[btf.Cache]

// kernelHas looks up these features in the kernel's BTF (CONFIG_DEBUG_INFO_BTF), once.
var kernelHas = sync.OnceValue(func() map[string]bool {
	found := map[string]bool{}
	cache := btf.NewCache()
	spec, err := cache.Kernel()
	if err != nil {
		return found
	}
	kernelBTF.Store(cache)
	found[kernelTypes] = true
	modules, err := cache.Modules()
	found[withoutModules] = err == nil && len(modules) == 0
	for _, name := range []string{socketIterator, sockDestroy} {
		var f *btf.Func
		found[name] = spec.TypeByName(name, &f) == nil
	}
	for _, name := range append([]string{ConntrackLookup, ConntrackTimeout}, conntrackInsertion...) {
		var f *btf.Func
		found[name] = spec.TypeByName(name, &f) == nil
		if module, err := cache.Module("nf_conntrack"); err == nil && !found[name] {
			found[name] = module.TypeByName(name, &f) == nil
		}
	}
	return found
})
