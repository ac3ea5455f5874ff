/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Tables of the edge: next hops to clients (edge/source.h). */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "edge/types.h"

/* 1: the device is one of the next hops to the network. Has the networks of routes with several
 * next hops, and of other routes inside. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct next_hop_key);
	__type(value, __u32);
} next_hops SEC(".maps");
