// SPDX-License-Identifier: Apache-2.0

package datapath

// The objects and the Go types of the structures in bpf/lib/types.h are made
// from bpf/ by `make generate`, which sets BPF_CLANG, BPF_STRIP and BPF_CFLAGS.
// The objects share their tables: those of sock.bpf.c.
//
//go:generate go tool bpf2go -target bpfel -cc $BPF_CLANG -strip $BPF_STRIP -cflags $BPF_CFLAGS -type address -type frontend_key -type frontend -type frontend_flag -type socket_mark -type decision -type backend -type affinity_key -type affinity_entry -type affinity_set -type set_table_size -type set_rank -type set_mix -type set_secret -type source_range_key -type network_key -type network -type service_name -type reserved_port_key -type socket_counters -type verdict -type dsr -type history_word -type untracked_ends -type dsr_accepted Sock ../../bpf/sock.bpf.c
//go:generate go tool bpf2go -target bpfel -cc $BPF_CLANG -strip $BPF_STRIP -cflags $BPF_CFLAGS -no-global-types Bind ../../bpf/bind.bpf.c
//go:generate go tool bpf2go -target bpfel -cc $BPF_CLANG -strip $BPF_STRIP -cflags $BPF_CFLAGS -no-global-types -type stale_socket Sweep ../../bpf/sweep.bpf.c
//go:generate go tool bpf2go -target bpfel -cc $BPF_CLANG -strip $BPF_STRIP -cflags $BPF_CFLAGS -no-global-types -type tuple -type track -type conntrack_set -type conntrack_entry -type set_head -type set_mark -type set_mix -type conntrack_timeout -type track_state -type track_flag -type edge_device -type edge_reason -type edge_counters -type edge_event -type service_counters -type service_packets -type service_traffic -type explanation -type door -type door_network4 -type door_network6 -type door_size -type door_multiplier -type door_state -type balancer EdgeTC ../../bpf/edge_tc.bpf.c
//go:generate go tool bpf2go -target bpfel -cc $BPF_CLANG -strip $BPF_STRIP -cflags $BPF_CFLAGS -no-global-types EdgeXDP ../../bpf/edge_xdp.bpf.c
//go:generate go tool bpf2go -target bpfel -cc $BPF_CLANG -strip $BPF_STRIP -cflags $BPF_CFLAGS -no-global-types EdgeSlot ../../bpf/edge_slot.bpf.c
//go:generate go tool bpf2go -target bpfel -cc $BPF_CLANG -strip $BPF_STRIP -cflags $BPF_CFLAGS -no-global-types -type xdp_dispatcher_config XDPDispatcher ../../bpf/xdp_dispatcher.bpf.c
