/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The route of a packet that takes the shortcut: the one that the stack would find, with all that
 * routing rules may match. The result is remembered with the flow (pod/flow_cache.h). */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "lb/address.h"
#include "packet/access.h"
#include "packet/device.h"
#include "packet/packet.h"
#include "packet/tuple.h"
#include "packet/types.h"
#include "pod/deliver.h"
#include "pod/maps.h"
#include "pod/types.h"
#include "route/fib.h"
#include "route/maps.h"
#include "route/types.h"
#include "state/scratch.h"

/* Returns the device by which the stack receives and sends the packets of a device: its bridge, or
 * the device itself. */
static __always_inline __u32 stack_device_of(__u32 device)
{
	const __u32 *bridge = bpf_map_lookup_elem(&pod_bridges, &device);

	return bridge ? *bridge : device;
}

/* Sets the fields of a lookup that differ by family. Returns whether the header was read. */
static __always_inline int pod_route_family(struct context *ctx, const struct packet *p,
					    const struct tuple *t, struct bpf_fib_lookup *fib)
{
	const __be32 *word;

	if (!p->is_v6) {
		fib->family = AF_INET;
		fib->tos = p->tos;
		fib->ipv4_src = address_to_v4(&t->source);
		fib->ipv4_dst = address_to_v4(&t->destination);
		return 1;
	}
	word = linear_bytes(ctx, p->l3, sizeof(*word));
	if (!word)
		return 0;
	fib->family = AF_INET6;
	fib->flowinfo = *word & bpf_htonl(0x0fffffff);
	__builtin_memcpy(fib->ipv6_src, &t->source, sizeof(struct address));
	__builtin_memcpy(fib->ipv6_dst, &t->destination, sizeof(struct address));
	return 1;
}

/* Asks the kernel for the route of a packet of some length. Returns the result of the helper. */
static __always_inline long pod_route_ask(struct __sk_buff *ctx, struct scratch *w,
					  const struct tuple *t, __u16 length)
{
	struct bpf_fib_lookup *fib = &w->out.fib;
	__u32 mark = ctx->mark;
	long result;

	__builtin_memset(fib, 0, sizeof(*fib));
	if (!pod_route_family(ctx, &w->packet, t, fib))
		return BPF_FIB_LKUP_RET_NOT_FWDED;
	fib->ifindex = stack_device_of(packet_device(ctx));
	fib->tot_len = length;
	fib->l4_protocol = t->protocol;
	fib->sport = t->source_port;
	fib->dport = t->destination_port;
	if (!mark)
		return bpf_fib_lookup(ctx, fib, sizeof(*fib), 0);
	__builtin_memcpy(fib->smac, &mark, sizeof(mark));
	result = bpf_fib_lookup(ctx, fib, sizeof(*fib), FIB_LOOKUP_MARK);
	/* Where the lookup takes no mark, rules by mark keep those pods on the stack that packets
	 * with a mark may reach (internal/shortcut/pod/route_marks.go). */
	return result < 0 ? bpf_fib_lookup(ctx, fib, sizeof(*fib), 0) : result;
}

/* Sets the MTU that the stack applies to what it forwards: the lookup does not know that of a route
 * unless it is locked. */
static __always_inline void pod_route_mtu(struct scratch *w, const struct tuple *t)
{
	__u32 mtu = route_mtu(w, t);

	if (mtu && mtu < w->out.fib.mtu_result)
		w->out.fib.mtu_result = mtu;
}

/* Looks up the route of the packet in the scratch area for a tuple, which has another destination
 * if that is translated. Returns enum routed. The kernel returns no device for a packet that is too
 * big, and no MTU if it does not know the neighbour. Global function: the verifier checks it once.
 * It looks up the scratch area, as fib_lookup_asked does. */
__noinline int pod_route(struct __sk_buff *ctx, const struct tuple *t)
{
	struct scratch *w = scratch_get();
	struct bpf_fib_lookup found;
	long result;

	if (!w || !t)
		return NOT_ROUTED;
	w->out.fib_cached = 0;
	result = pod_route_ask(ctx, w, t, 1);
	if (result != BPF_FIB_LKUP_RET_SUCCESS && result != BPF_FIB_LKUP_RET_NO_NEIGH)
		return NOT_ROUTED;
	if (result == BPF_FIB_LKUP_RET_NO_NEIGH) {
		found = w->out.fib;
		found.mtu_result = 0xffff;
		if (pod_route_ask(ctx, w, t, 0xffff) == BPF_FIB_LKUP_RET_FRAG_NEEDED)
			found.mtu_result = w->out.fib.mtu_result;
		w->out.fib = found;
	}
	pod_route_mtu(w, t);
	return result == BPF_FIB_LKUP_RET_SUCCESS ? ROUTED : ROUTED_BY_TC;
}

/* Returns whether the next hop that a lookup has found is a packet's destination. */
static __always_inline int next_hop_is(const struct bpf_fib_lookup *fib, const struct packet *p,
				       const struct address *destination)
{
	if (fib->family != (p->is_v6 ? AF_INET6 : AF_INET))
		return 0;
	if (!p->is_v6)
		return fib->ipv4_dst == address_to_v4(destination);
	return address_equal((const struct address *)fib->ipv6_dst, destination);
}

/* Returns whether the stack would send a packet with a tuple directly to a pod of this node. Sets
 * *hop to the pod with what the route tells: the MTU, and the MAC address as the kernel knows it;
 * zeros: it does not. */
static __always_inline int pod_route_local(struct context *ctx, struct scratch *w,
					   const struct tuple *t, const struct pod *to,
					   struct pod *hop)
{
	__u32 device = stack_device_of(to->device);
	int routed = pod_route(ctx, t);

	if ((routed != ROUTED && routed != ROUTED_BY_TC) || w->out.fib.ifindex != device ||
	    !next_hop_is(&w->out.fib, &w->packet, &t->destination))
		return 0;
	*hop = *to;
	if (w->out.fib.mtu_result < hop->mtu)
		hop->mtu = w->out.fib.mtu_result;
	if (to->l3)
		return 1;
	if (routed == ROUTED_BY_TC) {
		__builtin_memset(hop->mac, 0, sizeof(hop->mac));
		return 1;
	}
	/* The bridge may have learned the address at another port, and the agent not yet. */
	if (device != to->device && !mac_equal(to->mac, w->out.fib.dmac))
		return 0;
	mac_copy(hop->mac, w->out.fib.dmac);
	return 1;
}

/* Returns whether the stack would send the packet by a device to other nodes that has the program,
 * where the reply will arrive. Sets *hop to the next hop; MAC addresses of zeros: they are not
 * known, or there are none. */
static __always_inline int pod_route_out(struct context *ctx, struct scratch *w, struct pod *hop)
{
	int routed = pod_route(ctx, &w->packet.tuple);
	const struct pod_device *out;

	if (routed != ROUTED && routed != ROUTED_BY_TC)
		return 0;
	out = pod_device_at(w->out.fib.ifindex);
	if (!out || out->role != POD_ROLE_NODES)
		return 0;
	__builtin_memset(hop, 0, sizeof(*hop));
	hop->device = w->out.fib.ifindex;
	hop->mtu = w->out.fib.mtu_result;
	hop->l3 = !is_ethernet(w->out.fib.ifindex);
	if (hop->l3 || routed == ROUTED_BY_TC)
		return 1;
	mac_copy(hop->mac, w->out.fib.dmac);
	mac_copy(hop->gateway, w->out.fib.smac);
	return 1;
}
