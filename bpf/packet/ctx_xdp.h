/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Packet access for XDP: frames before the stack, not merged, with complete checksums. The headers
 * of a multi-buffer frame are in the first buffer. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include <linux/if_ether.h>
#include <bpf/bpf_endian.h>

#include "lb/address.h"
#include "lb/types.h"
#include "packet/access.h"
#include "packet/device.h"
#include "packet/types.h"

#define context	 xdp_md
#define EDGE_XDP 1
#define IS_XDP	 1

/* The action for a packet: ACTION_CONTINUE, or the return value of the hook. */
enum action {
	ACTION_DROP = XDP_DROP,
	ACTION_PASS = XDP_PASS,
	ACTION_BOUNCE = XDP_TX,
	ACTION_CONTINUE = 256, /* not decided: the caller goes on */
};

static __always_inline void *packet_at(struct xdp_md *ctx, __u32 offset, __u32 length)
{
	void *data = PACKET_POINTER(ctx, data), *end = PACKET_POINTER(ctx, data_end);

	barrier_var(offset); /* as in packet/ctx_tc.h */
	if (offset > HEADERS_END)
		return 0;
	data += offset;
	return data + length <= end ? data : 0;
}

static __always_inline const void *packet_bytes(struct xdp_md *ctx, __u32 offset, __u32 length)
{
	return packet_at(ctx, offset, length);
}

/* Like packet_bytes: headers are always linear. */
static __always_inline const void *linear_bytes(struct xdp_md *ctx, __u32 offset, __u32 length)
{
	return packet_at(ctx, offset, length);
}

static __always_inline __be16 packet_ethertype(const struct xdp_md *ctx, const struct ethhdr *eth)
{
	return eth->h_proto;
}

static __always_inline __u32 packet_length(struct xdp_md *ctx)
{
	return bpf_xdp_get_buff_len(ctx);
}

/* Returns whether the packet is at least `end` bytes long. The first buffer usually is. */
static __always_inline int packet_reaches(struct xdp_md *ctx, __u32 end)
{
	void *data = PACKET_POINTER(ctx, data), *last = PACKET_POINTER(ctx, data_end);

	barrier_var(end); /* as in packet/ctx_tc.h */
	return (end <= 0xffff && data + end <= last) || end <= packet_length(ctx);
}

/* Returns whether a packet that ends at `end` does not end its frame. A frame in several buffers
 * may end with bytes that this does not see. */
static __always_inline int packet_has_trailer(struct xdp_md *ctx, __u32 end)
{
	return PACKET_POINTER(ctx, data_end) - PACKET_POINTER(ctx, data) > (long)end;
}

/* What the device says does not reach XDP. */
static __always_inline int packet_sum_verified(struct xdp_md *ctx)
{
	return 0;
}

static __always_inline __u32 packet_segment(const struct xdp_md *ctx)
{
	return 0;
}

static __always_inline int packet_tagged(const struct xdp_md *ctx)
{
	return 0; /* XDP sees the tag in the packet */
}

/* Returns whether a frame has a tag with VID 0, which names no network. It is passed to tc: the
 * kernel removes the tag first. */
static __always_inline int packet_priority_tagged(struct xdp_md *ctx)
{
	const struct {
		struct ethhdr eth;
		__be16 tag;
	} *at = packet_at(ctx, 0, sizeof(*at));

	return at && at->eth.h_proto == bpf_htons(ETH_P_8021Q) && !(at->tag & bpf_htons(VLAN_ID));
}

static __always_inline int packet_load(struct xdp_md *ctx, __u32 offset, void *to, __u32 length)
{
	return bpf_xdp_load_bytes(ctx, offset, to, length);
}

#include "packet/csum.h"
#include "packet/packet.h"

/* Returns whether a frame is addressed to this node: a device may also receive frames for others.
 * Looks up the device only if it or the destination differs from the last frame's. */
static __always_inline int packet_is_for_node(struct xdp_md *ctx, struct own_mac *own)
{
	const struct ethhdr *eth = packet_at(ctx, 0, sizeof(*eth));
	__u32 device = ctx->ingress_ifindex;
	const struct edge_device *known;

	if (!eth)
		return 0;
	if (own->device == device && mac_equal(eth->h_dest, own->mac))
		return 1;
	known = bpf_map_lookup_elem(&edge_devices, &device);
	if (!known || !mac_equal(eth->h_dest, known->mac))
		return 0;
	own->device = device;
	__builtin_memcpy(own->mac, known->mac, ETH_ALEN);
	return 1;
}

static __always_inline int translate_ports(struct xdp_md *ctx, const struct packet *p,
					   const struct tuple *to, __u32 addresses)
{
	__u32 at = checksum_offset(p);
	__u32 all = checksum_difference(&p->tuple.source_port, &to->source_port, 1, addresses);
	__be32 *ports = packet_at(ctx, p->l4, 4);
	__sum16 *check = packet_at(ctx, at, 2);

	if (!ports || !check)
		return -1;
	__builtin_memcpy(ports, &to->source_port, 4);
	if (p->tuple.protocol == IPPROTO_UDP && !*check)
		return 0; /* IPv4: the sender computed none (RFC 768) */
	*check = checksum_plus(*check, all);
	if (p->tuple.protocol == IPPROTO_UDP && !*check)
		*check = 0xffff;
	return 0;
}

/* Rewrites the tuple and decrements the TTL. After an error drop the packet: it may be partly
 * changed. */
static __always_inline int packet_translate(struct xdp_md *ctx, const struct packet *p,
					    const struct tuple *to, int hops)
{
	__u8 left = p->hops - hops;
	__u32 addresses = addresses_difference(p, to);

	if (ports_change(p) && translate_ports(ctx, p, to, addresses))
		return -1;
	if (p->is_v6) {
		struct ipv6hdr *ip = packet_at(ctx, p->l3, sizeof(*ip));

		if (!ip)
			return -1;
		__builtin_memcpy(&ip->saddr, &to->source, sizeof(struct address));
		__builtin_memcpy(&ip->daddr, &to->destination, sizeof(struct address));
		ip->hop_limit = left;
	} else {
		struct iphdr *ip = packet_at(ctx, p->l3, sizeof(*ip));

		if (!ip)
			return -1;
		ip->saddr = address_to_v4(&to->source);
		ip->daddr = address_to_v4(&to->destination);
		ip->ttl = left;
		/* The TTL is the high byte of a 16-bit word. */
		ip->check = checksum_plus(
			ip->check, (__u64)addresses + (hops ? (__u16)~bpf_htons(p->hops << 8) +
								       bpf_htons(left << 8)
							    : 0));
	}
	return 0;
}

/* From Linux 6.13 on, a program that changes packet bounds can replace only a function that does
 * so, too, as the dispatchers of libxdp do since 2025. A program that may be attached below an
 * older dispatcher leaves this to tc. */
static __always_inline int packet_resize(struct xdp_md *ctx, const struct packet *p, __u32 length)
{
#ifdef FIXED_SIZE
	return -1;
#else
	return bpf_xdp_adjust_tail(ctx, (int)length - (int)packet_length(ctx));
#endif
}

/* As above, where trailing bytes remain. */
static __always_inline int packet_trim(struct xdp_md *ctx, __u32 length)
{
#ifdef FIXED_SIZE
	return 0;
#else
	return bpf_xdp_adjust_tail(ctx, (int)length - (int)packet_length(ctx));
#endif
}

static __always_inline int packet_store(struct xdp_md *ctx, __u32 offset, const void *from,
					__u32 length)
{
	return bpf_xdp_store_bytes(ctx, offset, (void *)from, length);
}

/* Moves the remaining bytes, because a frame shrinks only at its ends. */
static __always_inline int packet_cut(struct xdp_md *ctx, __u32 kept, __u32 length)
{
#ifdef FIXED_SIZE /* as above */
	return -1;
#else
	__u8 head[sizeof(struct ethhdr) + sizeof(struct ipv6hdr)];

	return packet_load(ctx, 0, head, kept) || bpf_xdp_adjust_head(ctx, (int)length) ||
	       packet_store(ctx, 0, head, kept);
#endif
}

/* Adds a difference to a checksum in the packet. */
static __always_inline int packet_checksum(struct xdp_md *ctx, __u32 offset, __s64 difference)
{
	__sum16 *check = packet_at(ctx, offset, sizeof(*check));

	if (!check || difference < 0)
		return -1;
	*check = checksum_plus(*check, difference);
	return 0;
}

static __always_inline __be32 packet_decrement_ttl(struct xdp_md *ctx, const struct packet *p)
{
	struct ipv6hdr *ip6;
	struct iphdr *ip;

	if (p->is_v6) {
		ip6 = packet_at(ctx, sizeof(struct ethhdr), sizeof(*ip6));
		if (!ip6)
			return 0;
		ip6->hop_limit = p->hops - 1;
		return *(__be32 *)ip6;
	}
	ip = packet_at(ctx, sizeof(struct ethhdr), sizeof(*ip));
	if (!ip)
		return 0;
	ip->ttl = p->hops - 1;
	ip->check = checksum_plus(ip->check, (__u16)~bpf_htons(0x0100));
	return *(__be32 *)ip;
}

/* As for packet_resize. */
#ifdef FIXED_SIZE
#define FIXED_HEAD 1
#else
#define FIXED_HEAD 0
#endif

static __always_inline int packet_lengthen(struct xdp_md *ctx, __u32 length)
{
#ifdef FIXED_SIZE
	return -1;
#else
	return bpf_xdp_adjust_head(ctx, -(int)length);
#endif
}

/* MAC addresses are written when the packet is forwarded. */
static __always_inline void *packet_push(struct xdp_md *ctx, void *buffer, __u32 length,
					 enum push_kind kind)
{
	struct ethhdr *eth;

	if (packet_lengthen(ctx, length))
		return 0;
	eth = packet_at(ctx, 0, sizeof(*eth) + length);
	if (!eth)
		return 0;
	eth->h_proto = kind & PUSH_IPV6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
	return eth + 1;
}

static __always_inline int packet_pushed(struct xdp_md *ctx, const void *at, __u32 length)
{
	return 0;
}

static __always_inline int packet_put(struct xdp_md *ctx, __u32 offset, const void *from,
				      __u32 length)
{
	return packet_store(ctx, offset, from, length);
}

static __always_inline int packet_insert(struct xdp_md *ctx, void *buffer, __u32 header,
					 __u32 length)
{
	return packet_load(ctx, 0, buffer, sizeof(struct ethhdr) + header) ||
	       packet_lengthen(ctx, length) ||
	       packet_store(ctx, 0, buffer, sizeof(struct ethhdr) + header);
}

static __always_inline __u32 packet_mark(const struct xdp_md *ctx)
{
	return 0;
}

static __always_inline __u32 packet_device(const struct xdp_md *ctx)
{
	return ctx->ingress_ifindex;
}

static __always_inline enum action packet_pass(struct xdp_md *ctx)
{
	return ACTION_PASS;
}

static __always_inline enum action packet_drop(struct xdp_md *ctx)
{
	return ACTION_DROP;
}

/* Sends the packet back out of its device; the MAC addresses are already set. */
static __always_inline enum action packet_bounce(struct xdp_md *ctx)
{
	return ACTION_BOUNCE;
}

/* XDP sees no egress packets. */
static __always_inline enum action packet_redirect_ingress(struct xdp_md *ctx)
{
	return ACTION_DROP;
}

/* Packets forwarded by XDP do not pass tc egress. */
static __always_inline void packet_mark_encapsulated(struct xdp_md *ctx)
{
}

/* Sends a packet to the next hop of the route, cached or not, out of the input device. Packets for
 * other devices were passed to tc (needs_tc). */
static __always_inline enum action packet_forward(struct xdp_md *ctx,
						  const struct bpf_fib_lookup *fib, int fib_cached)
{
	struct ethhdr *eth = packet_at(ctx, 0, sizeof(*eth));

	if (!eth)
		return ACTION_DROP;
	mac_copy(eth->h_dest, fib->dmac);
	mac_copy(eth->h_source, fib->smac);
	return ACTION_BOUNCE;
}
