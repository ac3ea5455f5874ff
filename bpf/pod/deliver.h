/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* How a packet leaves the pod shortcut: into a pod's namespace, or to the stack. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <bpf/bpf_helpers.h>

#include "packet/access.h"
#include "packet/length.h"
#include "packet/packet.h"
#include "pod/maps.h"
#include "pod/types.h"
#include "route/fib.h"
#include "state/scratch.h"

#ifdef NETKIT_PEER
#define AT_PEER_HOOK 1
#else
#define AT_PEER_HOOK 0
#endif

static __always_inline void pod_count(enum pod_path path)
{
	__u32 zero = 0;
	struct pod_counters *counters = bpf_map_lookup_elem(&pod_counts, &zero);
	__u32 place = path;

	/* The verifier of Linux 6.1 needs the comparison before the address, of one register. */
	barrier_var(place);
	if (!counters || place >= POD_PATHS)
		return;
	barrier_var(counters);
	counters->count[place]++;
}

/* Passes a packet to the stack. */
static __always_inline enum action pod_stack(struct context *ctx, enum pod_path why)
{
	if (!AT_PEER_HOOK) /* else the program at ingress counts it */
		pod_count(why);
	return packet_pass(ctx);
}

static __always_inline const struct pod_device *pod_device_at(__u32 index)
{
	return bpf_map_lookup_elem(&pod_devices, &index);
}

/* Returns the pod of this node with an address; 0 if there is none. */
static __always_inline const struct pod *pod_with(const struct address *a)
{
	const struct pod *pod = bpf_map_lookup_elem(&pods, a);

	return pod && bpf_map_lookup_elem(&pod_links, &pod->device) ? pod : 0;
}

/* Reads the destination of a frame. */
static __always_inline int frame_is_for(struct context *ctx, const __u8 *mac)
{
	const struct ethhdr *eth = linear_bytes(ctx, 0, sizeof(*eth));
	__u32 high, other_high;
	__u16 low, other_low;

	if (!eth)
		return 0;
	__builtin_memcpy(&high, eth->h_dest, sizeof(high));
	__builtin_memcpy(&low, eth->h_dest + sizeof(high), sizeof(low));
	__builtin_memcpy(&other_high, mac, sizeof(other_high));
	__builtin_memcpy(&other_low, mac + sizeof(other_high), sizeof(other_low));
	return high == other_high && low == other_low;
}

static __always_inline int mac_is_known(const __u8 *mac)
{
	__u32 high;
	__u16 low;

	__builtin_memcpy(&high, mac, sizeof(high));
	__builtin_memcpy(&low, mac + sizeof(high), sizeof(low));
	return (high | low) != 0;
}

/* Writes the MAC addresses of a frame to a pod, and first adds an Ethernet header if the packet has
 * none: offsets in the packet then change. */
static __always_inline int frame_for_pod(struct context *ctx, const struct pod *to)
{
	struct ethhdr *eth;

	if (link_header_add(ctx))
		return -1;
	eth = linear_bytes(ctx, 0, sizeof(*eth));
	if (!eth)
		return -1;
	if (!LINK_HEADER)
		eth->h_proto = ctx->protocol;
	mac_copy(eth->h_dest, to->mac);
	mac_copy(eth->h_source, to->gateway);
	return 0;
}

/* Returns whether a bridge would forward a frame otherwise than the shortcut: it keeps a tag, and
 * what follows the packet. */
static __always_inline int is_odd_for_bridge(const struct context *ctx, const struct packet *p)
{
	return ctx->vlan_present || packet_has_trailer(ctx, packet_end(p));
}

/* Returns whether the kernel has to find the MAC address of a pod, or of a next hop. */
static __always_inline int is_unresolved(const struct pod *to)
{
	return !to->l3 && !mac_is_known(to->mac);
}

/* Puts a packet into the namespace of a pod. `routed`: the stack would route it, not bridge it. If
 * the pod's MAC address is not known, the packet waits for it by the route in the scratch area.
 * `by_device`: by the node's end of the pod's device, where the kernel drops it if that is down. */
static __always_inline enum action pod_redirect(struct context *ctx, const struct scratch *w,
						const struct pod *to, int routed, int by_device,
						enum pod_path path)
{
	if (routed && is_unresolved(to)) {
		pod_count(path);
		return packet_forward(ctx, &w->out.fib, 0);
	}
	if ((routed || !LINK_HEADER) && frame_for_pod(ctx, to))
		return packet_drop(ctx);
	packet_untag(ctx);
	if (ctx->pkt_type != PACKET_HOST && bpf_skb_change_type(ctx, PACKET_HOST))
		return packet_drop(ctx);
	pod_count(path);
	if (AT_PEER_HOOK || by_device)
		return bpf_redirect(to->device, 0);
	return bpf_redirect_peer(to->device, 0);
}

/* Delivers a packet to a pod of this node. */
static __always_inline enum action pod_deliver(struct context *ctx, const struct scratch *w,
					       const struct pod *to, int routed, int by_device,
					       enum pod_path path)
{
	if (wire_length(ctx, &w->packet) > to->mtu || (routed && w->packet.hops <= 1))
		return pod_stack(ctx, POD_STACK_ROUTE);
	if (routed && !packet_decrement_ttl(ctx, &w->packet))
		return packet_drop(ctx);
	return pod_redirect(ctx, w, to, routed, by_device, path);
}
