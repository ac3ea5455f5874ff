/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "mesh/types.h"

/* Of sockets, freed with them. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct mesh_origin);
} mesh_origins SEC(".maps");

/* Key: the connection as its client sees it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct mesh_tuple);
	__type(value, struct mesh_handshake);
} mesh_handshakes SEC(".maps");

/* The proxy's sockets that listen. The kernel removes closed ones. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, 65536);
	__type(key, struct mesh_listener_key);
	__type(value, __u64);
} mesh_listeners SEC(".maps");

/* Each pod has a row for its cgroup and, once that is known, one for its network namespace. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096);
	__type(key, struct mesh_pod_key);
	__type(value, struct mesh_pod);
} mesh_pods SEC(".maps");

/* Value: enum mesh_rule. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct mesh_port);
	__type(value, __u32);
} mesh_ports SEC(".maps");

/* Value: enum mesh_rule. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct mesh_network);
	__type(value, __u32);
} mesh_networks SEC(".maps");

/* Value: enum mesh_rule. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, struct mesh_device);
	__type(value, __u32);
} mesh_devices SEC(".maps");

/* Value: enum mesh_rule. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct mesh_route);
	__type(value, __u32);
} mesh_routes SEC(".maps");

/* The cgroups of the containers of proxies, by those of their pods: ids. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 2048);
	__type(key, __u64);
	__type(value, __u64);
} mesh_proxy_cgroups SEC(".maps");

/* The name servers of pods whose proxies answer DNS. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, struct mesh_name_server);
	__type(value, __u32);
} mesh_name_servers SEC(".maps");

/* The node's own addresses, from which the kubelet probes. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096);
	__type(key, struct address);
	__type(value, __u32);
} mesh_node_addresses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct mesh_counters);
} mesh_counts SEC(".maps");

#define MESH_COUNT(field)                                                                  \
	do {                                                                               \
		__u32 zero = 0;                                                            \
		struct mesh_counters *counters = bpf_map_lookup_elem(&mesh_counts, &zero); \
		if (counters)                                                              \
			counters->field++;                                                 \
	} while (0)
