/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The maps of the sockets' programs alone. Those that they share with the edge are in lb/maps.h. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "sock/types.h"

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct connected);
} connected SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct connection);
} tcp_connections SEC(".maps");

/* The previous peer of a connected UDP socket that calls connect() again. The socket keeps it if
 * the kernel rejects the new peer. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct connected);
} connected_prev SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct udp_flows);
} udp_flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct udp_flows_overflow);
} udp_flows_overflow SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct bind_pending);
} bind_pending SEC(".maps");

/* Ports that bind() refuses: those of NodePorts and HostPorts (service.FrontendKind). */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct reserved_port_key);
	__type(value, __u32);
} reserved_ports SEC(".maps");

/* Cookies of the network namespaces of pods that have opted out of the socket shortcut. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, __u64);
	__type(value, __u32);
} opted_out SEC(".maps");

/* Cookies of the TCP sockets that the next garbage collection of sockets aborts. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, __u64);
	__type(value, __u32);
} sockets_to_abort SEC(".maps");

/* Returns whether a pod has opted out: its calls are left to the packet path. */
static __always_inline int has_opted_out(__u64 netns_cookie)
{
	return bpf_map_lookup_elem(&opted_out, &netns_cookie) != 0;
}
