/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The devices of the node. The agent fills the table. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "packet/types.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct edge_device);
} edge_devices SEC(".maps");

/* Returns whether a device's neighbours have MAC addresses. Those of a tunnel do not: their
 * link-layer addresses only look like MAC addresses, and packets to them need the route that the
 * kernel looks up. */
static __always_inline int is_ethernet(__u32 device)
{
	struct edge_device *found = bpf_map_lookup_elem(&edge_devices, &device);
	__u32 high;
	__u16 low;

	if (!found)
		return 0;
	__builtin_memcpy(&high, found->mac, sizeof(high));
	__builtin_memcpy(&low, found->mac + sizeof(high), sizeof(low));
	return (high | low) != 0;
}
