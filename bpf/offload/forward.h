/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Flow offload at ingress: packets of flows in the cache are translated and sent from here.
 *
 * An entry is checked by the packets themselves, every OFFLOAD_CHECK ticks: the kernel's conntrack
 * still has the flow, translates it alike, has the same mark and has not seen it close, the
 * kernel's FIB still has the same device and next hop, and the stack would accept the source. So no
 * event has to reach the agent for a change to take effect, and without an agent, too. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>

#include "offload/cache.h"
#include "offload/count.h"
#include "offload/note.h"
#include "offload/netfilter_flow.h"
#include "offload/source.h"
#include "offload/tunnel.h"
#include "offload/types.h"
#include "lb/address.h"
#include "netfilter/conntrack.h"
#include "packet/access.h"
#include "packet/length.h"
#include "packet/packet.h"
#include "packet/parse.h"
#include "packet/tuple.h"
#include "state/scratch.h"

/* The interval of checks, in ticks: 250 ms. */
#define OFFLOAD_CHECK	   240

/* Ages at which the kernel takes UDP for a stream, in ticks: 2 s (nf_conntrack_proto_udp.c). */
#define OFFLOAD_UDP_STREAM 2000

/* Does for a flow of the kernel's conntrack what its packets on the stack would do: refreshes its
 * timeout, and makes UDP that goes on a stream, which is not evicted for other flows. */
static __always_inline void offload_refresh(struct nf_conn *ct, struct scratch *w,
					    struct offload_flow *flow)
{
	const struct offload_control *control = offload_control_get();

	if (w->packet.tuple.protocol == IPPROTO_UDP && !(ct->status & IPS_ASSURED) && control &&
	    w->clock.tick - flow->learned > OFFLOAD_UDP_STREAM) {
		flow->timeout = control->udp_stream_timeout;
		bpf_ct_change_status(ct, ct->status | IPS_ASSURED);
	}
	bpf_ct_change_timeout(ct, flow->timeout);
}

/* Returns whether the kernel's conntrack has a flow as it was learned, and refreshes it. Global
 * function: the verifier checks it once. */
__noinline int offload_is_tracked(struct __sk_buff *ctx, struct scratch *w,
				  struct offload_flow *flow)
{
	struct nf_conn *ct;
	__u8 direction = 0;
	int same;

	if (!w || !flow)
		return 0;
	ct = netfilter_flow(ctx, &w->packet.tuple, &direction);
	if (!ct)
		return 0;
	netfilter_tuple(ct, !direction, &w->out.to, &w->packet.tuple);
	tuple_reverse(&w->out.to, &w->ct.reverse_key);
	same = tuple_equal(&w->ct.reverse_key, &flow->to) &&
	       is_established(ct, w->packet.tuple.protocol) && netfilter_mark(ct) == flow->mark;
	if (same)
		offload_refresh(ct, w, flow);
	bpf_ct_release(ct);
	return same;
}

/* Sets the fields of a route lookup that differ by family. Returns whether the header was read. */
static __always_inline int offload_route_addresses(struct context *ctx, const struct packet *p,
						   const struct offload_flow *flow,
						   struct bpf_fib_lookup *fib)
{
	const struct ipv6hdr *ip6;
	const struct iphdr *ip4;

	if (p->is_v6) {
		ip6 = linear_bytes(ctx, p->l3, sizeof(*ip6));
		if (!ip6)
			return 0;
		fib->family = AF_INET6;
		fib->flowinfo = *(const __be32 *)ip6 & bpf_htonl(0x0fffffff);
		__builtin_memcpy(fib->ipv6_src, &p->tuple.source, sizeof(struct address));
		__builtin_memcpy(fib->ipv6_dst, &flow->to.destination, sizeof(struct address));
		return 1;
	}
	ip4 = linear_bytes(ctx, p->l3, sizeof(*ip4));
	if (!ip4)
		return 0;
	fib->family = AF_INET;
	fib->tos = ip4->tos;
	fib->ipv4_src = address_to_v4(&p->tuple.source);
	fib->ipv4_dst = address_to_v4(&flow->to.destination);
	return 1;
}

/* Looks up the route of a packet as the stack does, between translation of its destination and of
 * its source. The length is one byte, not the packet's: the lookup of a packet that is too big
 * returns neither device nor next hop. Any length makes it return the MTU. */
static __always_inline long offload_route(struct context *ctx, struct scratch *w,
					  const struct offload_flow *flow)
{
	const struct packet *p = &w->packet;
	struct bpf_fib_lookup *fib = &w->out.fib;

	__builtin_memset(fib, 0, sizeof(*fib));
	fib->ifindex = ctx->ifindex;
	fib->tot_len = 1;
	fib->l4_protocol = p->tuple.protocol;
	fib->sport = p->tuple.source_port;
	fib->dport = flow->to.destination_port;
	if (!offload_route_addresses(ctx, p, flow, fib))
		return BPF_FIB_LKUP_RET_NOT_FWDED;
	return bpf_fib_lookup(ctx, fib, sizeof(*fib), 0);
}

/* Returns the MTU of a flow's path. bpf_fib_lookup does not tell the MTU of a route that is not
 * locked; the stack applies it to forwarded packets. */
static __always_inline __u16 offload_mtu(const struct scratch *w, const struct offload_flow *flow)
{
	__u16 mtu = w->out.fib.mtu_result;

	return flow->route_mtu && flow->route_mtu < mtu ? flow->route_mtu : mtu;
}

/* Returns whether the route and the next hop of a flow are as they were learned, and updates its
 * MTU. Once that is known, a device without MAC addresses needs no neighbour. Global function: the
 * verifier checks it once. */
__noinline int offload_is_routed(struct __sk_buff *ctx, struct scratch *w,
				 struct offload_flow *flow)
{
	int l3;
	long result;

	if (!w || !flow)
		return 0;
	l3 = flow->flags & OFFLOAD_L3;
	result = offload_route(ctx, w, flow);
	if (flow->flags & OFFLOAD_TUNNEL && result == BPF_FIB_LKUP_RET_UNSUPP_LWT) {
		flow->mtu = flow->route_mtu; /* the agent follows such routes */
		return 1;
	}
	if (w->out.fib.ifindex != flow->device)
		return 0;
	if (result == BPF_FIB_LKUP_RET_NO_NEIGH)
		return l3 && flow->mtu;
	if (result != BPF_FIB_LKUP_RET_SUCCESS)
		return 0;
	if (!l3 && !(mac_equal(w->out.fib.dmac, flow->destination_mac) &&
		     mac_equal(w->out.fib.smac, flow->source_mac)))
		return 0;
	flow->mtu = offload_mtu(w, flow);
	return 1;
}

static __always_inline enum action offload_stack(struct context *ctx, enum offload_path path)
{
	offload_count_packet(path);
	return packet_pass(ctx);
}

/* Returns a flow to the stack. One that has never passed the check is not counted anew: the stack
 * routes it by what the check does not see, such as a mark, and each further entry would end alike.
 */
static __always_inline enum action offload_return(struct context *ctx, struct offload_flow *flow,
						  enum offload_state state, enum offload_path path)
{
	flow->state = state;
	if (flow->mtu)
		offload_count_again(
			offload_sum(&flow->key.tuple, flow->key.device, flow->key.tunnel));
	return offload_stack(ctx, path);
}

/* Sends a packet to the next hop. The packet that has checked the flow passes through the kernel's
 * neighbour table, which keeps the neighbour in use, and probes it. To a device without MAC
 * addresses the kernel looks up the route again and leaves it with the packet: a tunnel to several
 * nodes (IPIP) takes the outer destination from it. */
static __always_inline enum action offload_send(struct context *ctx, const struct scratch *w,
						const struct offload_flow *flow, int checked)
{
	struct bpf_redir_neigh next = {};
	struct ethhdr *eth;

	packet_untag(ctx);
	if (link_header_add(ctx))
		return packet_drop(ctx);
	if (flow->flags & OFFLOAD_TUNNEL && tunnel_set(ctx, &flow->tunnel))
		return packet_drop(ctx);
	if (!(flow->flags & OFFLOAD_TUNNEL)) {
		if (flow->flags & OFFLOAD_L3)
			return bpf_redirect_neigh(flow->device, 0, 0, 0);
		if (checked) {
			next.nh_family = w->out.fib.family;
			__builtin_memcpy(next.ipv6_nh, w->out.fib.ipv6_dst, sizeof(next.ipv6_nh));
			return bpf_redirect_neigh(flow->device, &next, sizeof(next), 0);
		}
	}
	eth = linear_bytes(ctx, 0, sizeof(*eth));
	if (!eth)
		return packet_drop(ctx);
	mac_copy(eth->h_dest, flow->destination_mac);
	mac_copy(eth->h_source, flow->source_mac);
	if (!LINK_HEADER)
		eth->h_proto = ctx->protocol;
	return bpf_redirect(flow->device, 0);
}

/* Returns whether a packet can be of a flow in the cache. */
static __always_inline int offload_takes(const struct packet *p, enum parsed parsed)
{
	__u32 header = p->is_v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);

	return parsed == PARSED && !p->fragment && p->tuple.protocol != IPPROTO_SCTP &&
	       p->l4 - p->l3 - unsent_header(p) == header;
}

static __always_inline enum action offload_forward(struct context *ctx, struct scratch *w,
						   struct offload_flow *flow)
{
	const struct packet *p = &w->packet;
	struct offload_counters *counters;
	__u32 now = w->clock.tick;
	int checked = 0;

	if (p->tcp_flags & (TCP_SYN | TCP_FIN | TCP_RST))
		return offload_return(ctx, flow, OFFLOAD_CLOSED, OFFLOAD_PATH_CLOSING);
	if (p->hops <= 1 || !packet_is_for_node(ctx, &w->own))
		return offload_stack(ctx, OFFLOAD_PATH_UNSUPPORTED);
	if (now - flow->checked >= OFFLOAD_CHECK || !flow->mtu) {
		if (!offload_is_tracked(ctx, w, flow))
			return offload_return(ctx, flow, OFFLOAD_UNTRACKED, OFFLOAD_PATH_RETURNED);
		if (!offload_source_valid(ctx, w, flow) || !offload_is_routed(ctx, w, flow))
			return offload_return(ctx, flow, OFFLOAD_REROUTED, OFFLOAD_PATH_RETURNED);
		flow->checked = now;
		checked = 1;
	}
	if (wire_length(ctx, p) > flow->mtu || frame_trim(ctx, packet_end(p)))
		return offload_stack(ctx, OFFLOAD_PATH_UNSUPPORTED);
	if (flow->flags & OFFLOAD_TRANSLATE) {
		if (packet_translate(ctx, p, &flow->to, 1))
			return packet_drop(ctx);
	} else if (!packet_decrement_ttl(ctx, p)) {
		return packet_drop(ctx);
	}
	flow->last_seen = now;
	flow->packets++;
	flow->bytes += p->length;
	counters = offload_counters_get();
	if (counters) {
		counters->packets[OFFLOAD_PATH_CACHE]++;
		counters->bytes += p->length;
	}
	return offload_send(ctx, w, flow, checked);
}

/* `external`: the device is a tunnel in external mode. */
static __always_inline enum action offload_ingress(struct context *ctx, int external)
{
	struct scratch *w = scratch_get();
	const struct offload_control *control = offload_control_get();
	struct offload_flow *flow;
	__u32 tunnel = 0;
	__u64 sum;

	note_take(ctx); /* of another offload that the packet has passed */
	if (!w || !control)
		return packet_pass(ctx);
	scratch_reset(w);
	if (!offload_takes(&w->packet, packet_parse(ctx, &w->packet)))
		return packet_pass(ctx);
	if (external) {
		tunnel = tunnel_arrived(ctx);
		if (!tunnel)
			return packet_pass(ctx);
	}
	sum = offload_sum(&w->packet.tuple, ctx->ifindex, tunnel);
	flow = offload_find(&w->packet.tuple, ctx->ifindex, tunnel, sum);
	if (flow && flow->state == OFFLOAD_ACTIVE) {
		if (flow->epoch == control->epoch)
			return offload_forward(ctx, w, flow);
		return offload_return(ctx, flow, OFFLOAD_OUTDATED, OFFLOAD_PATH_RETURNED);
	}
	if (w->packet.tcp_flags & TCP_SYN)
		offload_count_again(sum); /* the port may have been another connection's */
	else if (!(w->packet.tcp_flags & (TCP_FIN | TCP_RST)) &&
		 offload_is_due(w, sum, control->threshold))
		note_leave(ctx, tunnel);
	return packet_pass(ctx);
}
