// SPDX-License-Identifier: Apache-2.0

package datapath

// The object and the Go types of the structures in bpf/lib/types.h are made
// from bpf/ by `make generate`, which sets BPF_CLANG, BPF_STRIP and BPF_CFLAGS.
//
//go:generate go tool bpf2go -target bpfel -cc $BPF_CLANG -strip $BPF_STRIP -cflags $BPF_CFLAGS -type address -type frontend_key -type frontend -type decision -type backend -type affinity_key -type affinity_entry -type source_range_key -type network_key -type network -type service_name -type socket_counters -type verdict Sock ../../bpf/sock.bpf.c
