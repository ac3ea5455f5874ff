/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What ingress leaves with a packet for egress, in skb->tc_index: that the flow is to be looked at,
 * and by which key of a tunnel in external mode the packet arrived. The stack replaces the tunnel's
 * metadata of a packet that it forwards, and keeps tc_index. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "gateway/maps.h"

enum {
	NOTE_NONE,
	NOTE_LOOK = GATEWAY_TUNNELS, /* by no such tunnel; else the key's place in `gateway_tunnels`
				      */
};

#define TUNNEL_PROBES 8

/* Leaves that the flow is to be looked at. `tunnel`: the key, plus 1; 0: by no such tunnel. If
 * there is no place left for a key, the flow is not learned. */
static __always_inline void note_leave(struct __sk_buff *ctx, __u32 tunnel)
{
	__u32 hash = tunnel * 0x9e3779b1 >> 16;

	if (!tunnel) {
		ctx->tc_index = NOTE_LOOK;
		return;
	}
	for (__u32 i = 0; i < TUNNEL_PROBES; i++) {
		__u32 at = (hash + i) % GATEWAY_TUNNELS;
		__u32 *there = bpf_map_lookup_elem(&gateway_tunnels, &at);

		if (!there || at == NOTE_NONE)
			continue;
		if (*there != tunnel)
			__sync_val_compare_and_swap(there, 0, tunnel);
		if (*there != tunnel)
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

/* Returns the key that a note names, plus 1; 0 if there is none. */
static __always_inline __u32 note_tunnel(__u32 note)
{
	const __u32 *key = bpf_map_lookup_elem(&gateway_tunnels, &note);

	return key ? *key : 0;
}
