/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Flow offload at egress: it learns flows from packets that the stack has forwarded. Such a packet
 * has passed all rules of the stack, and its frame has the tuple, the device and the next hop that
 * the stack has chosen, by whatever means. Ingress says which packets are to be looked at
 * (offload/note.h): the flow has had enough of them. Its flow is proposed to the agent. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_helpers.h>

#include "offload/cache.h"
#include "offload/forward.h"
#include "offload/note.h"
#include "offload/netfilter_flow.h"
#include "offload/tunnel.h"
#include "offload/types.h"
#include "netfilter/conntrack.h"
#include "packet/packet.h"
#include "packet/parse.h"
#include "packet/tuple.h"
#include "state/scratch.h"

/* Fills in by what devices and tunnels a flow comes and leaves, and its next hop. */
static __always_inline enum offload_refusal offload_learn_devices(struct __sk_buff *ctx,
								  const struct tuple *t, __u32 note,
								  struct offload_flow *flow)
{
	__u32 device = note_arrival(ctx, note, &flow->key.tunnel);
	const __u32 *in = bpf_map_lookup_elem(&offload_devices, &device), *out;
	struct ethhdr *eth;

	flow->key.device = device;
	flow->to = *t;
	flow->device = device = ctx->ifindex;
	flow->state = OFFLOAD_ACTIVE;
	if (!in)
		return OFFLOAD_UNKNOWN_DEVICE;
	if (*in & OFFLOAD_DEVICE_EXTERNAL && !flow->key.tunnel)
		return OFFLOAD_UNKNOWN_TUNNEL;
	out = bpf_map_lookup_elem(&offload_devices, &device);
	if (out && *out & OFFLOAD_DEVICE_EXTERNAL) {
		flow->flags |= OFFLOAD_TUNNEL;
		if (!tunnel_learn(ctx, &flow->tunnel))
			return OFFLOAD_UNKNOWN_TUNNEL;
	}
	if (!LINK_HEADER) {
		flow->flags |= OFFLOAD_L3;
		return OFFLOAD_PROPOSED;
	}
	eth = linear_bytes(ctx, 0, sizeof(*eth));
	if (!eth)
		return OFFLOAD_NOT_ESTABLISHED; /* not reported to the agent, as those */
	mac_copy(flow->destination_mac, eth->h_dest);
	mac_copy(flow->source_mac, eth->h_source);
	return OFFLOAD_PROPOSED;
}

/* Returns why a flow may not be offloaded; OFFLOAD_PROPOSED: it may, as far as its packets and the
 * kernel's conntrack show. `devices` is the same for its devices and tunnels. The agent asks for
 * the rest (refusal in internal/shortcut/offload/refusal.go). */
static __always_inline enum offload_refusal offload_refusal(struct nf_conn *ct, __u8 protocol,
							    enum offload_refusal devices)
{
	if (!is_established(ct, protocol))
		return OFFLOAD_NOT_ESTABLISHED;
	if (has_helper(ct))
		return OFFLOAD_HELPER;
	if (ct->status & IPS_OFFLOAD)
		return OFFLOAD_IN_FLOWTABLE;
	return devices;
}

/* Fills in the flow of a packet. Returns why it may not be offloaded, as offload_refusal(). */
static __always_inline enum offload_refusal offload_learn(struct __sk_buff *ctx, struct scratch *w,
							  __u32 note, struct offload_flow *flow)
{
	struct tuple *t = &w->packet.tuple;
	enum offload_refusal refusal = offload_learn_devices(ctx, t, note, flow);
	struct nf_conn *ct;
	__u8 direction = 0;

	tuple_reverse(t, &w->ct.reverse_key);
	ct = netfilter_flow(ctx, &w->ct.reverse_key, &direction);
	if (!ct)
		return OFFLOAD_NOT_ESTABLISHED;
	refusal = offload_refusal(ct, t->protocol, refusal);
	netfilter_tuple(ct, !direction, &flow->key.tuple, t);
	flow->timeout = netfilter_timeout(ct);
	flow->mark = netfilter_mark(ct);
	flow->learned = w->clock.tick;
	bpf_ct_release(ct);
	if (!tuple_same(&flow->key.tuple, &flow->to))
		flow->flags |= OFFLOAD_TRANSLATE;
	return refusal;
}

/* Proposes the flow of a packet to the agent. Global function: the verifier checks it once. */
__noinline int offload_propose(struct __sk_buff *ctx, struct scratch *w, __u32 note, __u32 epoch)
{
	struct offload_candidate *candidate;

	if (!w)
		return 0;
	candidate = bpf_ringbuf_reserve(&offload_candidates, sizeof(*candidate), 0);
	if (!candidate) {
		offload_count_packet(OFFLOAD_PATH_NOT_REPORTED);
		return 0;
	}
	__builtin_memset(candidate, 0, sizeof(*candidate));
	candidate->refusal = offload_learn(ctx, w, note, &candidate->flow);
	candidate->flow.epoch = epoch;
	if (candidate->refusal == OFFLOAD_NOT_ESTABLISHED) {
		bpf_ringbuf_discard(candidate, 0);
		return 0;
	}
	offload_count_packet(OFFLOAD_PATH_CANDIDATE);
	bpf_ringbuf_submit(candidate, 0);
	return 0;
}

static __always_inline enum action offload_egress(struct __sk_buff *ctx)
{
	__u32 note = note_take(ctx);
	const struct offload_control *control;
	struct scratch *w;

	if (!note || !ctx->ingress_ifindex)
		return packet_pass(ctx);
	control = offload_control_get();
	w = scratch_get();
	if (!control || !w)
		return packet_pass(ctx);
	scratch_reset(w);
	if (offload_takes(&w->packet, packet_parse(ctx, &w->packet)))
		offload_propose(ctx, w, note, control->epoch);
	return packet_pass(ctx);
}
