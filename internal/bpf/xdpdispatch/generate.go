// SPDX-License-Identifier: Apache-2.0

package xdpdispatch

// The dispatcher and its configuration are made from bpf/ as in internal/bpf/generate.go.
//
//go:generate go tool bpf2go -target bpfel -cc $BPF_CLANG -strip $BPF_STRIP -cflags $BPF_CFLAGS -no-global-types -type xdp_dispatcher_config XDPDispatcher ../../../bpf/xdp_dispatcher.bpf.c
