// SPDX-License-Identifier: Apache-2.0

package bpf

// The objects and the Go types of the structures in bpf/lb/types.h are made
// from bpf/ by `make generate`, which sets BPF_CLANG, BPF_STRIP and BPF_CFLAGS.
// The objects share their tables: those of sock.bpf.c.
//
//go:generate go tool bpf2go -target bpfel -cc $BPF_CLANG -strip $BPF_STRIP -cflags $BPF_CFLAGS -type address -type frontend_key -type frontend -type frontend_lists -type slot_range -type frontend_flag -type socket_mark -type decision -type backend -type affinity_key -type affinity_entry -type affinity_set -type set_table_size -type set_rank -type set_mix -type set_secret -type source_range_key -type network_key -type network -type service_name -type reserved_port_key -type socket_counters -type verdict -type dsr -type history_word -type untracked_filter -type dsr_accepted Sock ../../bpf/sock.bpf.c
//go:generate go tool bpf2go -target bpfel -cc $BPF_CLANG -strip $BPF_STRIP -cflags $BPF_CFLAGS -no-global-types Bind ../../bpf/bind.bpf.c
//go:generate go tool bpf2go -target bpfel -cc $BPF_CLANG -strip $BPF_STRIP -cflags $BPF_CFLAGS -no-global-types -type stale_socket SockGC ../../bpf/sock_gc.bpf.c
//go:generate go tool bpf2go -target bpfel -cc $BPF_CLANG -strip $BPF_STRIP -cflags $BPF_CFLAGS -no-global-types -type socket_stats -type backend_sockets_key -type rtt_histogram SockStats ../../bpf/sock_stats.bpf.c
//go:generate go tool bpf2go -target bpfel -cc $BPF_CLANG -strip $BPF_STRIP -cflags $BPF_CFLAGS -no-global-types -type connect_explanation -type connect_reason ConnectExplain ../../bpf/connect_explain.bpf.c
//go:generate go tool bpf2go -target bpfel -cc $BPF_CLANG -strip $BPF_STRIP -cflags $BPF_CFLAGS -no-global-types -type tuple -type ct_entry -type ct_lb -type ct_set -type ct_slot -type set_tags -type set_evictions -type set_eviction -type set_mix -type ct_timeout -type ct_state -type ct_flag -type source_validation -type next_hop_key -type routing -type routing_flag -type route_key -type route_encap -type xfrm_pair -type xfrm_pairs -type edge_device -type edge_reason -type edge_counters -type edge_event -type loss_key -type loss -type service_counters -type service_packets -type service_traffic -type explanation -type prefilter -type prefilter_network4 -type prefilter_network6 -type prefilter_size -type prefilter_multiplier -type prefilter_state -type balancer -type dsr_check -type migration_phase -type migration_hook EdgeTC ../../bpf/edge_tc.bpf.c
//go:generate go tool bpf2go -target bpfel -cc $BPF_CLANG -strip $BPF_STRIP -cflags $BPF_CFLAGS -no-global-types EdgeMigrate ../../bpf/edge_migrate.bpf.c
//go:generate go tool bpf2go -target bpfel -cc $BPF_CLANG -strip $BPF_STRIP -cflags $BPF_CFLAGS -no-global-types EdgeL3 ../../bpf/edge_l3.bpf.c
//go:generate go tool bpf2go -target bpfel -cc $BPF_CLANG -strip $BPF_STRIP -cflags $BPF_CFLAGS -no-global-types EdgeXDP ../../bpf/edge_xdp.bpf.c
//go:generate go tool bpf2go -target bpfel -cc $BPF_CLANG -strip $BPF_STRIP -cflags $BPF_CFLAGS -no-global-types -type pod -type pod_device -type pod_role -type pod_path -type pod_counters -type pod_lease -type tuple -type pod_record -type pod_record_flag Pod ../../bpf/pod.bpf.c
//go:generate go tool bpf2go -target bpfel -cc $BPF_CLANG -strip $BPF_STRIP -cflags $BPF_CFLAGS -no-global-types PodNetkit ../../bpf/pod_netkit.bpf.c
//go:generate go tool bpf2go -target bpfel -cc $BPF_CLANG -strip $BPF_STRIP -cflags $BPF_CFLAGS -no-global-types PodL3 ../../bpf/pod_l3.bpf.c
//go:generate go tool bpf2go -target bpfel -cc $BPF_CLANG -strip $BPF_STRIP -cflags $BPF_CFLAGS -no-global-types -type tuple -type offload_key -type offload_flow -type offload_set -type offload_tunnel -type offload_control -type offload_state -type offload_flag -type offload_path -type offload_refusal -type offload_device -type offload_counters -type offload_candidate Offload ../../bpf/offload.bpf.c
//go:generate go tool bpf2go -target bpfel -cc $BPF_CLANG -strip $BPF_STRIP -cflags $BPF_CFLAGS -no-global-types OffloadL3 ../../bpf/offload_l3.bpf.c
//go:generate go tool bpf2go -target bpfel -cc $BPF_CLANG -strip $BPF_STRIP -cflags $BPF_CFLAGS -no-global-types -type mesh_tuple -type mesh_handshake -type mesh_listener_key -type mesh_pod -type mesh_pod_key -type mesh_pod_kind -type mesh_pod_flags -type mesh_rule -type mesh_port -type mesh_network -type mesh_direction -type mesh_size -type mesh_counters -type mesh_program_key -type mesh_program -type mesh_acceptor_key -type mesh_acceptor -type mesh_member -type mesh_reader -type mesh_unread -type mesh_name_server -type mesh_loop_count -type mesh_device -type mesh_route Mesh ../../bpf/mesh.bpf.c
//go:generate go tool bpf2go -target bpfel -cc $BPF_CLANG -strip $BPF_STRIP -cflags $BPF_CFLAGS -no-global-types MeshInbound ../../bpf/mesh_inbound.bpf.c
//go:generate go tool bpf2go -target bpfel -cc $BPF_CLANG -strip $BPF_STRIP -cflags $BPF_CFLAGS -no-global-types -type mesh_mark MeshReroute ../../bpf/mesh_reroute.bpf.c
//go:generate go tool bpf2go -target bpfel -cc $BPF_CLANG -strip $BPF_STRIP -cflags $BPF_CFLAGS -no-global-types XDPSlot ../../bpf/xdp_slot.bpf.c
