/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The tables of the pod shortcut. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "lb/types.h"
#include "packet/types.h"
#include "pod/types.h"

/* The pods of this node with the program at their devices. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct address);
	__type(value, struct pod);
} pods SEC(".maps");

/* The devices with the program, by index. An entry is written after the program is attached, and
 * deleted before it is detached: the shortcut needs both directions of a flow. What is remembered
 * of a flow (pod/flow_cache.h) lasts up to 50 ms longer, in both directions. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct pod_device);
} pod_devices SEC(".maps");

/* The devices of `pods`, by index: without an agent, too, nothing is sent to a device that is gone.
 * The kernel deletes an entry together with its device, and if that moves to another network
 * namespace. A new device with the same index has no entry. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} pod_links SEC(".maps");

/* The bridge above a device of pods, by index: the stack receives and sends their packets by it. An
 * entry is there before that of `pods`. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} pod_bridges SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct pod_counters);
} pod_counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct pod_lease);
} pod_leases SEC(".maps");

/* Addresses in the pod networks that are the source of packets and no row of `pods` has, and the
 * index of the device. Behind a bridge the agent asks for them: packets that a bridge forwards do
 * not tell the node who has which address. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct address);
	__type(value, __u32);
} pod_unknown SEC(".maps");

/* Who opened a flow (pod/opener.h): TCP after its handshake, UDP that both ends have used for some
 * time. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct tuple);
	__type(value, struct pod_record);
} pod_established SEC(".maps");

/* The same of all others: a flood of them evicts only each other. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct tuple);
	__type(value, struct pod_record);
} pod_opening SEC(".maps");
