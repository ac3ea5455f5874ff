/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The pod shortcut: packets between pods skip the IP stack of their node. The program is at the
 * ingress of the devices of pods and of those that lead to other nodes.
 *
 *   from a pod to one of this node    bpf_redirect_peer: into the other pod's namespace
 *   from a pod to one of another node bpf_redirect_neigh: to the next hop. The packet keeps its
 *                                     socket until it is sent, so TCP notices a full queue
 *   from another node to a pod        bpf_redirect_peer
 *
 * The decision depends only on the addresses of a packet, on tables that both directions use, and
 * on who else tracks the flow (pod/known_flow.h), so both directions of a flow take the same
 * path. What has no shortcut is passed. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_packet.h>
#include <bpf/bpf_helpers.h>

#include "filter/source_class.h"
#include "icmp/quote.h"
#include "icmp/reply.h"
#include "lb/types.h"
#include "packet/access.h"
#include "packet/packet.h"
#include "packet/parse.h"
#include "packet/tuple.h"
#include "pod/deliver.h"
#include "pod/flow_cache.h"
#include "pod/known_flow.h"
#include "pod/maps.h"
#include "pod/opener.h"
#include "pod/route.h"
#include "pod/service.h"
#include "pod/source.h"
#include "pod/types.h"
#include "route/fib.h"
#include "route/fragment.h"
#include "state/scratch.h"

#define ICMP_ECHO_REPLY	    0
#define ICMP_ECHO_REQUEST   8
#define ICMPV6_ECHO_REQUEST 128
#define ICMPV6_ECHO_REPLY   129

/* Returns whether a packet has options, which routers have to look at. The option of a merged
 * packet that is too long for the length field (BIG TCP) is no such: it is not sent. */
static __always_inline int has_options(const struct packet *p)
{
	__u32 header = p->is_v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);

	return p->l4 && p->l4 - p->l3 - unsent_header(p) != header;
}

/* Returns the tuple by which others may track a packet: its own, or that of the packet that an
 * ICMP error quotes; 0 if nobody can track it (*may is 1), or if it has no shortcut (*may is 0).
 * Fragments stay on the stack: only the first one has ports. */
static __always_inline const struct tuple *tracked_tuple(struct context *ctx, struct scratch *w,
							 enum parsed parsed, int *may)
{
	const struct packet *p = &w->packet;
	const struct icmp_header *icmp;
	__u8 type;

	*may = 0;
	if (p->fragment || parsed == PARSED_MALFORMED || has_options(p) || !p->l4 ||
	    !packet_reaches(ctx, p->l3 + p->length))
		return 0;
	if (parsed == PARSED) {
		*may = p->tuple.protocol != IPPROTO_SCTP; /* no lookup in the kernel's conntrack */
		return &p->tuple;
	}
	if (!is_icmp(p))
		return 0;
	icmp = packet_bytes(ctx, p->l4, sizeof(*icmp));
	if (!icmp)
		return 0;
	type = icmp->type;
	if (type == (p->is_v6 ? ICMPV6_ECHO_REQUEST : ICMP_ECHO_REQUEST) ||
	    type == (p->is_v6 ? ICMPV6_ECHO_REPLY : ICMP_ECHO_REPLY)) {
		*may = 1;
		return 0;
	}
	__builtin_memset(&w->quoted, 0, sizeof(w->quoted));
	if (is_redirect(ctx, p))
		return 0;
	if (quote_parse(ctx, p, &w->quoted)) {
		*may = w->quoted.tuple.protocol != IPPROTO_SCTP;
		return &w->quoted.tuple;
	}
	*may = w->quoted.l3 && is_icmp(&w->quoted); /* about an echo request */
	return 0;
}

/* Returns whether a packet from another node is between pods. An ICMP error may come from a router
 * between them: the packet that it quotes counts. */
static __always_inline int is_from_pod_network(const struct scratch *w)
{
	const struct packet *quoted = &w->quoted;

	if (class_of(&w->packet.tuple.source) == FROM_POD)
		return 1;
	return quoted->l3 && address_equal(&quoted->tuple.source, &w->packet.tuple.destination) &&
	       class_of(&quoted->tuple.destination) == FROM_POD;
}

/* Returns whether the stack would send an ICMP error about the packet to the device by which it
 * came: the error has a route of its own. */
static __always_inline int has_route_back(struct context *ctx, struct scratch *w,
					  const struct address *own)
{
	struct tuple *back = &w->ct.reverse_key;

	__builtin_memset(back, 0, sizeof(*back));
	back->source = *own;
	back->destination = w->packet.tuple.source;
	back->protocol = w->packet.is_v6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP;
	return pod_route(ctx, back) != NOT_ROUTED &&
	       w->out.fib.ifindex == stack_device_of(packet_device(ctx));
}

/* Returns the MTU to quote to a packet that exceeds that of its route, and decrements the hop limit
 * if the stack has done so by then. IPv6 applies the device's MTU, or that of a locked route,
 * before it decrements, and that of any other route afterwards. */
static __always_inline __u32 pod_mtu_exceeded(struct context *ctx, struct scratch *w, __u32 mtu)
{
	const struct packet *p = &w->packet;

	if (!p->is_v6)
		return mtu;
	if (pod_route_ask(ctx, w, &p->tuple, 0xffff) == BPF_FIB_LKUP_RET_FRAG_NEEDED &&
	    wire_length(ctx, p) > w->out.fib.mtu_result)
		return w->out.fib.mtu_result;
	packet_decrement_ttl(ctx, p);
	return mtu;
}

/* Replies to a packet that exceeds the MTU to another node. The stack would reply, too, but its
 * conntrack would see the flow. It fragments what may be fragmented, also each segment of merged
 * packets. Global function: the verifier checks it once. */
__noinline enum action pod_too_big(struct context *ctx, __u32 mtu)
{
	struct scratch *w = scratch_get();
	const struct address *own;
	const struct packet *p;

	if (!w)
		return packet_drop(ctx);
	p = &w->packet;
	own = address_on(packet_device(ctx), p->is_v6);
	if (!own || !(p->is_v6 || dont_fragment(ctx, p)) || !has_route_back(ctx, w, own))
		return pod_stack(ctx, POD_STACK_ROUTE);
	pod_count(POD_PATH_TOO_BIG);
	mtu = pod_mtu_exceeded(ctx, w, mtu);
	if (reply_icmp_error(ctx, p, own, ICMP_TOO_BIG, mtu) != REPLY_SENT)
		return packet_drop(ctx);
	return packet_bounce(ctx);
}

/* Sends a packet of a pod to the next hop on the way to another node. */
static __always_inline enum action pod_send(struct context *ctx, struct scratch *w,
					    const struct pod *hop)
{
	if (w->packet.hops <= 1)
		return pod_stack(ctx, POD_STACK_ROUTE);
	if (wire_length(ctx, &w->packet) > hop->mtu)
		return pod_too_big(ctx, hop->mtu);
	if (!packet_decrement_ttl(ctx, &w->packet))
		return packet_drop(ctx);
	pod_count(POD_PATH_OUT);
	if (w->out.fib_cached) {
		w->out.fib.ifindex = hop->device;
		mac_copy(w->out.fib.smac, hop->gateway);
		mac_copy(w->out.fib.dmac, hop->mac);
	}
	return packet_forward(ctx, &w->out.fib, w->out.fib_cached && !hop->l3);
}

/* Returns whether two devices are ports of one bridge. */
static __always_inline int are_at_one_bridge(__u32 a, __u32 b)
{
	const __u32 *of_a = bpf_map_lookup_elem(&pod_bridges, &a);
	const __u32 *of_b = bpf_map_lookup_elem(&pod_bridges, &b);

	return of_a && of_b && *of_a == *of_b;
}

/* Notes the source of a packet that is no known pod. */
static __always_inline void pod_note_unknown(struct context *ctx, const struct address *source)
{
	__u32 device = ctx->ifindex;

	if (!AT_PEER_HOOK && class_of(source) == FROM_POD &&
	    !bpf_map_lookup_elem(&pod_unknown, source))
		bpf_map_update_elem(&pod_unknown, source, &device, BPF_ANY);
}

/* Returns whether a packet of a pod may take the shortcut. `to`: the pod of this node that it is
 * for. `reply`: the edge has to rewrite it. *routed: the stack would route it, not bridge it.
 * *withheld: the pod's new flows take the stack. */
static __always_inline int from_pod(struct context *ctx, const struct scratch *w,
				    const struct pod_device *device, const struct pod *to,
				    int reply, int *routed, int *withheld, enum pod_path *why)
{
	const struct tuple *t = &w->packet.tuple;
	const struct pod *from = bpf_map_lookup_elem(&pods, &t->source);

	*why = POD_STACK_SOURCE;
	if (!from)
		pod_note_unknown(ctx, &t->source);
	if (!from || from->device != ctx->ifindex)
		return 0;
	*withheld |= from->withheld;
	*why = POD_STACK_DESTINATION;
	if (!reply && (to ? to->device == ctx->ifindex : class_of(&t->destination) != FROM_POD))
		return 0;
	*why = POD_STACK_OTHER;
	*routed = frame_is_for(ctx, device->mac);
	return *routed ||
	       (to && mac_is_known(to->mac) && frame_is_for(ctx, to->mac) &&
		are_at_one_bridge(ctx->ifindex, to->device) && !is_odd_for_bridge(ctx, &w->packet));
}

/* Returns whether a packet from another node may take the shortcut. `flow`: whose it is. One that
 * the edge has rewritten has passed the edge's source validation. */
static __always_inline int from_node(struct context *ctx, struct scratch *w, const struct pod *to,
				     enum pod_flow flow, enum pod_path *why)
{
	*why = POD_STACK_DESTINATION;
	if (!to)
		return 0;
	*why = POD_STACK_OTHER;
	if (!packet_is_for_node(ctx, &w->own))
		return 0;
	*why = POD_STACK_SOURCE;
	if (flow == FLOW_TO_POD)
		return 1;
	if (flow != FLOW_ERROR && !is_from_pod_network(w))
		return 0;
	return !bpf_map_lookup_elem(&pods, &w->packet.tuple.source) && source_is_of_nodes(ctx, w);
}

/* Returns whether the agent has searched packet filters lately. */
static __always_inline int pod_lease_valid(struct scratch *w)
{
	__u32 zero = 0;
	const struct pod_lease *lease = bpf_map_lookup_elem(&pod_leases, &zero);

	return lease && w->clock.second < *(const volatile __u32 *)&lease->until;
}

/* Returns why new flows take the stack; POD_PATHS: they do not. */
static __always_inline enum pod_path new_flow_refusal(struct scratch *w, int withheld)
{
	if (!pod_lease_valid(w))
		return POD_STACK_UNSEARCHED;
	return withheld ? POD_STACK_WITHHELD : POD_PATHS;
}

/* Returns the path of a packet that takes the shortcut. `to_pod`: to a pod of this node. */
static __always_inline enum pod_path pod_path_of(const struct pod_device *device, int to_pod)
{
	if (!to_pod)
		return POD_PATH_OUT;
	return device->role == POD_ROLE_PODS ? POD_PATH_LOCAL : POD_PATH_IN;
}

/* Sends a packet that takes the shortcut of an entry. */
static __always_inline enum action pod_forward(struct context *ctx, struct scratch *w,
					       const struct pod_flow_entry *flow)
{
	if (flow->path == POD_PATH_OUT)
		return pod_send(ctx, w, &flow->to);
	return pod_deliver(ctx, w, &flow->to, flow->routed, flow->by_device,
			   flow->path == POD_PATH_LOCAL ? POD_PATH_LOCAL : POD_PATH_IN);
}

/* Returns whether a packet stays on the shortcut where new flows take the stack: the kernel's
 * conntrack does not know the flow yet, and might take the packet for the first one of a flow in
 * the other direction. The agent makes an entry of conntrack before the shortcut ends for the flow.
 * Without an agent the flow stays. */
static __always_inline int pod_stays(const struct scratch *w, enum pod_flow flow, int unreplied,
				     enum pod_opener opener)
{
	const struct packet *p = &w->packet;

	switch (flow) {
	case FLOW_OF_NOBODY:
		return opener != OPENER_UNKNOWN;
	case FLOW_TO_POD:
		if (p->tuple.protocol == IPPROTO_TCP)
			return (p->tcp_flags & (TCP_SYN | TCP_ACK)) != TCP_SYN;
		return !unreplied;
	default:
		return 1;
	}
}

/* Returns whether a packet is the SYN of a connection. */
static __always_inline int pod_opens(const struct packet *p, enum parsed parsed)
{
	return parsed == PARSED && p->tuple.protocol == IPPROTO_TCP &&
	       (p->tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST | TCP_FIN)) == TCP_SYN;
}

/* Returns the device by which the packet of a pod leaves: that of another pod, or of the client of
 * a flow of the edge. */
static __always_inline __u32 pod_leaves_by(const struct scratch *w, enum pod_flow flow,
					   const struct ct_entry *ct, const struct pod *to,
					   const struct pod_flow_entry *chosen)
{
	if (to)
		return to->device;
	if (flow == FLOW_FROM_POD)
		return ct ? ct->device : 0;
	return flow == FLOW_ERROR ? w->ct.entry.device : chosen->to.device;
}

/* Decides about the packet in the scratch area. With ACTION_CONTINUE it takes the shortcut of
 * *chosen. Global function: the verifier checks it once, and the rest once after it. */
__noinline enum action pod_decide(struct context *ctx, const struct pod_device *device,
				  enum parsed parsed, struct pod_flow_entry *chosen)
{
	struct scratch *w = scratch_get();
	enum pod_flow flow = FLOW_OF_NOBODY;
	enum pod_path why = POD_STACK_OTHER;
	int may, routed = 1, unreplied = 0, withheld = 0;
	enum pod_path refusal; /* of new flows */
	enum pod_opener opener = OPENER_UNKNOWN;
	const struct tuple *tracked;
	struct ct_entry *ct = 0;
	const struct pod *to;
	enum pod_path path;

	if (!w || !device || !chosen)
		return packet_pass(ctx);
	tracked = tracked_tuple(ctx, w, parsed, &may);
	if (!may)
		return pod_stack(ctx, POD_STACK_OTHER);
	to = pod_with(&w->packet.tuple.destination);
	if (tracked && edge_may_have_flow(tracked)) {
		if (parsed == PARSED)
			flow = pod_flow_of(ctx, w, &ct, &unreplied);
		else /* an ICMP error */
			flow = error_flow_of(w, tracked);
	}
	if (flow == FLOW_OF_STACK)
		return pod_stack(ctx, POD_STACK_SERVICE);
	if (device->role == POD_ROLE_PODS)
		may = from_pod(ctx, w, device, to, flow == FLOW_FROM_POD || flow == FLOW_ERROR,
			       &routed, &withheld, &why);
	else
		may = from_node(ctx, w, to, flow, &why);
	if (!may)
		return pod_stack(ctx, why);
	refusal = new_flow_refusal(w, withheld | (to && to->withheld));
	if (tracked &&
	    kernel_has_flow(ctx, tracked, refusal == POD_PATHS && pod_opens(&w->packet, parsed)))
		return pod_stack(ctx, POD_STACK_KERNEL_FLOW);
	path = pod_path_of(device, to != 0 || flow == FLOW_FROM_POD);
	if ((flow == FLOW_OF_NOBODY || flow == FLOW_TO_POD) &&
	    !pod_flow_route(ctx, &w->packet.tuple, to, routed, chosen, path))
		return pod_stack(ctx, POD_STACK_ROUTE);
	if (device->role == POD_ROLE_PODS && device->rp_filter && routed && !w->packet.is_v6 &&
	    !source_is_of_pod(ctx, w, pod_leaves_by(w, flow, ct, to, chosen)))
		return pod_stack(ctx, POD_STACK_SOURCE);
	if (flow == FLOW_OF_NOBODY && parsed == PARSED)
		opener = pod_opener_of(refusal == POD_PATHS);
	if (refusal != POD_PATHS) {
		if (flow == FLOW_OF_NOBODY && tracked && parsed != PARSED && pod_quoted_is_known())
			opener = OPENER_SENDER;
		if (!pod_stays(w, flow, unreplied, opener))
			return pod_stack(ctx, refusal);
	}
	if (frame_trim(ctx, packet_end(&w->packet)))
		return pod_stack(ctx, POD_STACK_OTHER);
	/* Only an agent knows which ports of bridges are down. Of other devices routes tell it. */
	chosen->by_device = refusal == POD_STACK_UNSEARCHED && to &&
			    bpf_map_lookup_elem(&pod_bridges, &to->device);
	if (flow == FLOW_FROM_POD && ct)
		return pod_reply(ctx, w, ct, unreplied, !routed, chosen, path);
	if (flow == FLOW_ERROR)
		return pod_error(ctx, to, routed, chosen, path);
	/* The edge may delete its entry at any time. */
	chosen->known &= POD_FLOW_ROUTE;
	if (chosen->known && parsed == PARSED && flow == FLOW_OF_NOBODY)
		chosen->known |= POD_FLOW_DECISION;
	return ACTION_CONTINUE;
}

/* Deletes the closed flow whose tuple a direct connection has, from the same port of the client:
 * else the replies that follow its SYN+ACK would be of that flow. In pod_decide the calls would
 * need more stack than the verifier of Linux 6.1 allows. */
static __always_inline void pod_end_reused(struct scratch *w)
{
	const struct ct_entry *ct;
	int unreplied;

	w->in.hash = tuple_hash(&w->packet.tuple);
	ct = ct_lookup(&w->packet.tuple, w->in.hash, &unreplied);
	if (ct && ct_syn_unseen(ct, &w->packet))
		ct_delete_flow(ct);
}

static __always_inline enum action pod_ingress(struct context *ctx)
{
	struct scratch *w = scratch_get();
	const struct pod_device *device;
	struct pod_flow_entry *flow;
	enum action action;
	enum parsed parsed;

	if (!w)
		return packet_pass(ctx);
	scratch_reset(w);
	w->quoted.l3 = 0;
	parsed = packet_parse(ctx, &w->packet);
	flow = pod_flow_place(&w->packet);
	if (!flow)
		return packet_pass(ctx);
	w->out.fib_cached = 1;
	if (parsed != PARSED || w->packet.fragment || has_options(&w->packet) ||
	    !pod_flow_valid(ctx, w, flow) || frame_trim(ctx, packet_end(&w->packet))) {
		device = pod_device_at(ctx->ifindex);
		if (!device)
			return packet_pass(ctx);
		action = pod_decide(ctx, device, parsed, flow);
		if (action != ACTION_CONTINUE)
			return action;
		if (w->in.reused)
			pod_end_reused(w);
	}
	return pod_forward(ctx, w, flow);
}
