/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The tables that all programs share, and how to look something up in them.
 *
 * The agent is the only writer of all but the counters, what is kept with
 * sockets, and `affinity` (affinity.h). What a reader can reach never changes
 * under it:
 *
 *   frontends: key -> row number   turned by one hash update, last of all
 *   frontend_rows                  filled while nothing leads to the row
 *   slots                          filled while no row names the range
 *   backends                       filled while no slot names the id
 *
 * and each is used again only after every program that could have been reading
 * has ended. So no reader sees a half-made set, and an agent that is killed
 * between two steps leaves the old state or the new one. Sizes are set by the
 * loader (datapath.Limits).
 */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "address.h"
#include "types.h"

/* Set by the loader: the programs say what they would do and write nothing that
 * outlives the packet. What depends on it is not even loaded where it is not so. */
const volatile __u8 dry_run = 0;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct frontend_key);
	__type(value, __u32);
} frontends SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct frontend);
} frontend_rows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct backend);
} backends SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct service_name);
} services SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct source_range_key);
	__type(value, __u32);
} source_ranges SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct network_key);
	__type(value, enum network);
} networks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct connected);
} connected SEC(".maps");

/* The connection that a UDP socket had when it was connected anew: it goes on if
 * the kernel refuses the new one. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct connected);
} connected_before SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct flows);
} udp_flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct more_flows);
} more_udp_flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct unnamed_port);
} unnamed_ports SEC(".maps");

/* Has few packets looked up in vain before their flow is looked for. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct untracked_ends);
} untracked_frontends SEC(".maps");

/* What bind() is refused (service.Frontend kinds NodePort and HostPort). */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct reserved_port_key);
	__type(value, __u32);
} reserved_ports SEC(".maps");

/* Cookies of the network namespaces of pods that have opted out of the socket
 * shortcut. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, __u64);
	__type(value, __u32);
} opted_out SEC(".maps");

/* Cookies of TCP sockets that the next sweep ends. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, __u64);
	__type(value, __u32);
} doomed SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct socket_counters);
} socket_counts SEC(".maps");

/* Adds one to a field of struct socket_counters. Atomic, since a hook can be
 * preempted by another task's hook on the same CPU. */
#define COUNT(field)                                                                      \
	do {                                                                              \
		__u32 zero_ = 0;                                                          \
		struct socket_counters *c_ = bpf_map_lookup_elem(&socket_counts, &zero_); \
		if (c_)                                                                   \
			__sync_fetch_and_add(&c_->field, 1);                              \
	} while (0)

/* Whether a service, now or later, has this address (R21). */
static __always_inline int in_service_network(const struct address *address)
{
	struct network_key key = {.prefixlen = 128, .address = *address};
	enum network *network = bpf_map_lookup_elem(&networks, &key);

	return network && *network == NETWORK_SERVICE;
}

/* loadBalancerSourceRanges (R25). */
static __always_inline int source_admitted(__u32 source_set, const struct address *source)
{
	struct source_range_key key = {
		.prefixlen = 32 + 128,
		.source_set = source_set,
		.address = *source,
	};

	return bpf_map_lookup_elem(&source_ranges, &key) != 0;
}

/* Whether a pod's calls are left to the packet path. */
static __always_inline int has_opted_out(__u64 netns_cookie)
{
	return bpf_map_lookup_elem(&opted_out, &netns_cookie) != 0;
}
