/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What ingress leaves with a packet for egress, in skb->tc_index: that the flow is to be looked at,
 * and how the packet arrived where egress cannot tell. The stack replaces the tunnel's metadata of
 * a packet that it forwards, and the input device by the VRF, and keeps tc_index. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "offload/maps.h"
#include "offload/types.h"

enum {
	NOTE_NONE,
	NOTE_LOOK = OFFLOAD_ARRIVALS, /* egress can tell; else a place in `offload_arrivals` */
};

#define ARRIVAL_PROBES 8

/* Leaves that the flow is to be looked at. `tunnel`: the key of a tunnel in external mode, plus 1;
 * 0: by no such tunnel. If there is no place left for an arrival, the flow is not learned. */
static __always_inline void note_leave(struct __sk_buff *ctx, __u32 tunnel)
{
	__u32 device = ctx->ifindex, hash;
	const __u32 *flags = bpf_map_lookup_elem(&offload_devices, &device);
	__u64 arrival = (__u64)device << 32 | tunnel;

	if (!flags || !(*flags & (OFFLOAD_DEVICE_EXTERNAL | OFFLOAD_DEVICE_IN_VRF))) {
		ctx->tc_index = NOTE_LOOK;
		return;
	}
	hash = (tunnel * 0x9e3779b1 ^ device * 0x85ebca6b) >> 16;
	for (__u32 i = 0; i < ARRIVAL_PROBES; i++) {
		__u32 at = (hash + i) % OFFLOAD_ARRIVALS;
		__u64 *there = bpf_map_lookup_elem(&offload_arrivals, &at);

		if (!there || at == NOTE_NONE)
			continue;
		if (*there != arrival)
			__sync_val_compare_and_swap(there, 0, arrival);
		if (*there != arrival)
			continue;
		ctx->tc_index = at;
		return;
	}
}

/* Removes the note. Returns it. */
static __always_inline __u32 note_take(struct __sk_buff *ctx)
{
	__u32 note = ctx->tc_index;

	if (note)
		ctx->tc_index = NOTE_NONE;
	return note;
}

/* Returns the device by which a packet with a note has arrived, and sets the tunnel's key, plus 1;
 * 0 if it is not known. */
static __always_inline __u32 note_arrival(const struct __sk_buff *ctx, __u32 note, __u32 *tunnel)
{
	const __u64 *arrival = bpf_map_lookup_elem(&offload_arrivals, &note);

	if (!arrival) {
		*tunnel = 0;
		return ctx->ingress_ifindex;
	}
	*tunnel = *arrival;
	return *arrival >> 32;
}
