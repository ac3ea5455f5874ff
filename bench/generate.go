// SPDX-License-Identifier: Apache-2.0

package main

// What the programs of the edge are timed with; see internal/bpf/generate.go.
//
//go:generate go tool bpf2go -target bpfel -cc $BPF_CLANG -strip $BPF_STRIP -cflags $BPF_CFLAGS -no-global-types PodsRedirect bpf/pods_redirect.bpf.c
