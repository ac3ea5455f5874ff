/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The addresses that may send encapsulated packets to this node, and the health checks of this node
 * that take the path of clients' packets. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "lb/types.h"
#include "packet/types.h"

/* Networks of balancers that send encapsulated packets to backends on this node, and this node's
 * own addresses in them. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, struct network_key);
	__type(value, enum balancer);
} balancers SEC(".maps");

/* The cookie of a health check's socket (dsr/health_check.h) by the tuple of its replies: from the
 * frontend, and from the connected address. The programs delete none. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct tuple);
	__type(value, __u64);
} dsr_check_replies SEC(".maps");
