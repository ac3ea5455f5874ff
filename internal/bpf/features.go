// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"
)

// Feature is a feature of the kernel that Beeline uses.
type Feature struct {
	Name            string `json:"name"`
	SinceLinux      string `json:"sinceLinux"` // first kernel version that has it
	Present         bool   `json:"present"`
	EffectOfAbsence string `json:"effectOfAbsence,omitempty"`
	// Required: without it the agent does not start.
	Required bool `json:"required"`
}

type featureProbe struct {
	Feature
	probe func() error
}

func socketHelper(fn asm.BuiltinFunc) func() error {
	return func() error { return features.HaveProgramHelper(ebpf.CGroupSockAddr, fn) }
}

var featureProbes = []featureProbe{
	{Feature{Name: "cgroup socket hooks", SinceLinux: "4.17", Required: true, EffectOfAbsence: "no socket shortcut"},
		func() error { return features.HaveProgramType(ebpf.CGroupSockAddr) }},
	{Feature{Name: "memory-mapped arrays", SinceLinux: "5.5", Required: true, EffectOfAbsence: "no atomic tables"},
		func() error { return features.HaveMapFlag(features.BPF_F_MMAPABLE) }},
	{Feature{Name: "network namespace cookies", SinceLinux: "5.7", Required: true, EffectOfAbsence: "pods and host cannot be distinguished"},
		socketHelper(asm.FnGetNetnsCookie)},
	{Feature{Name: "socket storage in socket hooks", SinceLinux: "5.8", Required: true, EffectOfAbsence: "getpeername cannot return the Service address"},
		socketHelper(asm.FnSkStorageGet)},
	{Feature{Name: "bpf_loop", SinceLinux: "5.17", Required: true, EffectOfAbsence: "session affinity cannot search a set"},
		socketHelper(asm.FnLoop)},
	{Feature{Name: "return values of socket hooks", SinceLinux: "5.18", Required: true, EffectOfAbsence: "connect() to a Service without endpoints cannot return ECONNREFUSED"},
		socketHelper(asm.FnSetRetval)},
	{Feature{Name: "kernel BTF (CONFIG_DEBUG_INFO_BTF)", SinceLinux: "5.2", EffectOfAbsence: "no bind protection, and none of the following"},
		kernelTold(KernelTypes)},
	{Feature{Name: "socket iterators", SinceLinux: "5.9", EffectOfAbsence: "UDP sockets stay connected to removed backends"},
		kernelTold(socketIterator)},
	{Feature{Name: "bpf_sock_destroy", SinceLinux: "6.5", EffectOfAbsence: "sockets of removed backends are closed by netlink, which is slower"},
		kernelTold(sockDestroy)},
	{Feature{Name: "programs that replace functions (freplace)", SinceLinux: "5.10", EffectOfAbsence: "XDP programs cannot share a device: tc serves devices that have another one"},
		HaveReplacement},
}

// HaveReplacement probes what a dispatcher needs. Some kernels have it, but do not allow it.
func HaveReplacement() error {
	err := features.HaveProgramType(ebpf.Extension)
	if errors.Is(err, unix.EPERM) {
		return ebpf.ErrNotSupported
	}
	return err
}

func kernelTold(name string) func() error {
	return func() error {
		if !kernelHas()[name] {
			return ebpf.ErrNotSupported
		}
		return nil
	}
}

// Features probes the running kernel. A feature counts as present if its probe fails: loading the programs
// then returns the error.
func Features() []Feature {
	var all []Feature
	for _, p := range featureProbes {
		f := p.Feature
		f.Present = !errors.Is(p.probe(), ebpf.ErrNotSupported)
		if f.Present {
			f.EffectOfAbsence = ""
		}
		all = append(all, f)
	}
	return all
}

// requiredFeatures returns an error that names what the running kernel lacks.
func requiredFeatures() error {
	var errs []error
	for _, f := range Features() {
		if f.Required && !f.Present {
			errs = append(errs, fmt.Errorf("the kernel lacks %s (Linux %s): %s", f.Name, f.SinceLinux, f.EffectOfAbsence))
		}
	}
	return errors.Join(errs...)
}

// KernelBTF returns the kernel's BTF for loading programs; nil if it is not cached.
func KernelBTF() *btf.Cache { return kernelBTF.Load() }

// KernelHas reports whether the kernel has one of the features that its BTF shows.
func KernelHas(feature string) bool { return kernelHas()[feature] }

// HaveSockDestroy reports whether the kernel has bpf_sock_destroy (Linux 6.5).
func HaveSockDestroy() bool { return kernelHas()[sockDestroy] }

// Features that the kernel's BTF shows.
const (
	KernelTypes    = "types"
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
	found[KernelTypes] = true
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
