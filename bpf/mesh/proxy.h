/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Processes that have acted as a proxy: that listened at a port of the proxy, or asked for the
 * original destination of a redirected connection, which nobody else can. If nothing else tells
 * such a process from applications (another user than is configured, a user namespace), its own
 * connections would come back to it, again and again. They are refused. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "mesh/kernel.h"
#include "mesh/maps.h"
#include "mesh/types.h"

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, __u64);
	__type(value, struct mesh_proxy);
} mesh_proxies SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, struct mesh_loop_count);
} mesh_loops SEC(".maps");

static __always_inline struct task_struct *mesh_current_process(void)
{
	return BPF_CORE_READ((struct task_struct *)bpf_get_current_task(), group_leader);
}

/* The calling process acts as a proxy. */
static __always_inline void mesh_note_proxy(void)
{
	struct task_struct *process = mesh_current_process();
	struct mesh_proxy proxy = {.started = BPF_CORE_READ(process, start_time)};
	__u64 key = (__u64)process;

	bpf_map_update_elem(&mesh_proxies, &key, &proxy, BPF_ANY);
}

static __always_inline int mesh_has_acted(const struct task_struct *process)
{
	__u64 key = (__u64)process;
	const struct mesh_proxy *proxy = bpf_map_lookup_elem(&mesh_proxies, &key);

	return proxy && proxy->started == BPF_CORE_READ(process, start_time);
}

/* Returns whether the calling process, or the one that has forked it, has acted as a proxy, and
 * counts that. */
static __always_inline int mesh_loops_back(__u64 netns)
{
	struct task_struct *process = mesh_current_process();
	struct mesh_loop_count first = {.count = 1, .last = bpf_ktime_get_ns()}, *loops;

	if (!mesh_has_acted(process) &&
	    !mesh_has_acted(BPF_CORE_READ(process, real_parent, group_leader)))
		return 0;
	MESH_COUNT(loops);
	loops = bpf_map_lookup_elem(&mesh_loops, &netns);
	if (loops) {
		__sync_fetch_and_add(&loops->count, 1);
		loops->last = first.last;
	} else {
		bpf_map_update_elem(&mesh_loops, &netns, &first, BPF_NOEXIST);
	}
	return 1;
}
