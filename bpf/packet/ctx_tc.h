/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Packet access for tc. The skb may be non-linear, and its checksum may be left to a device
 * (CHECKSUM_PARTIAL) or computed by one (CHECKSUM_COMPLETE). Only the kernel knows which, so its
 * helpers change the bytes covered by these checksums. Other bytes are written directly: before the
 * program runs, the kernel makes the linear data private to this skb. The sender's clone of a TCP
 * segment shares only the payload, which is not part of it; for packet sockets on the device the
 * kernel copies the headers. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "lb/address.h"
#include "lb/types.h"
#include "packet/access.h"
#include "packet/types.h"

#define context __sk_buff
#define IS_XDP	0

/* The action for a packet: ACTION_CONTINUE, or the return value of the hook. */
enum action {
	ACTION_PASS = TC_ACT_UNSPEC, /* continue with the next program */
	ACTION_DROP = TC_ACT_SHOT,
	ACTION_REDIRECT = TC_ACT_REDIRECT,
	ACTION_CONTINUE = 256, /* not decided: the caller goes on */
};

/* Flags of bpf_l4_csum_replace for the IPv6 pseudo header: BPF_F_PSEUDO_HDR, with BPF_F_IPV6 from
 * Linux 6.16 on. Set by the loader. */
const volatile __u64 pseudo_header_v6 = BPF_F_PSEUDO_HDR;

static __always_inline void *linear_bytes(struct __sk_buff *ctx, __u32 offset, __u32 length)
{
	void *data = PACKET_POINTER(ctx, data), *end = PACKET_POINTER(ctx, data_end);

	/* The verifier needs this comparison, even if the compiler does not: Linux 6.1 loses the
	 * bounds of values spilled to the stack. */
	barrier_var(offset);
	if (offset > HEADERS_END)
		return 0;
	data += offset;
	return data + length <= end ? data : 0;
}

static __always_inline const void *packet_bytes(struct __sk_buff *ctx, __u32 offset, __u32 length)
{
	const void *bytes = linear_bytes(ctx, offset, length);

	if (bytes || offset > HEADERS_END || offset + length > ctx->len)
		return bytes;
	if (bpf_skb_pull_data(ctx, offset + length))
		return 0;
	return linear_bytes(ctx, offset, length);
}

static __always_inline __be16 packet_ethertype(const struct __sk_buff *ctx,
					       const struct ethhdr *eth)
{
	return LINK_HEADER ? eth->h_proto : ctx->protocol;
}

static __always_inline __u32 packet_length(const struct __sk_buff *ctx)
{
	return ctx->len;
}

static __always_inline int packet_reaches(const struct __sk_buff *ctx, __u32 end)
{
	return end <= packet_length(ctx);
}

static __always_inline int packet_has_trailer(const struct __sk_buff *ctx, __u32 end)
{
	return packet_length(ctx) > end;
}

/* Returns whether the device has verified the checksum of layer 4. */
static __always_inline int packet_sum_verified(struct __sk_buff *ctx)
{
	return bpf_csum_level(ctx, BPF_CSUM_LEVEL_QUERY) >= 0;
}

static __always_inline __u32 packet_segment(const struct __sk_buff *ctx)
{
	return ctx->gso_size;
}

/* A tag with VID 0 carries a priority only and names no network (IEEE 802.1Q); the stack also
 * treats such a frame as untagged. */
static __always_inline int packet_tagged(const struct __sk_buff *ctx)
{
	return ctx->vlan_present &&
	       (ctx->vlan_tci & VLAN_ID || ctx->vlan_proto != bpf_htons(ETH_P_8021Q));
}

/* Removes the tag of a frame before it is sent: its priority was for the input link. The stack
 * removes the tag of frames that it receives. */
static __always_inline void packet_untag(struct __sk_buff *ctx)
{
	if (ctx->vlan_present)
		bpf_skb_vlan_pop(ctx);
}

static __always_inline int packet_load(struct __sk_buff *ctx, __u32 offset, void *to, __u32 length)
{
	return bpf_skb_load_bytes(ctx, offset, to, length);
}

#include "packet/csum.h"
#include "packet/packet.h"

static __always_inline int packet_is_for_node(const struct __sk_buff *ctx, struct own_mac *own)
{
	/* Without MAC addresses there are no frames for others. */
	return !LINK_HEADER || ctx->pkt_type == PACKET_HOST;
}

/* Updates the checksum of layer 4. */
static __always_inline int translate_checksum(struct __sk_buff *ctx, const struct packet *p,
					      const struct tuple *to, __u32 addresses)
{
	__u32 at = checksum_offset(p);
	__u64 zero = p->tuple.protocol == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;
	__u64 pseudo = p->is_v6 ? pseudo_header_v6 : BPF_F_PSEUDO_HDR;
	__be32 before, after;

	__builtin_memcpy(&before, &p->tuple.source_port, 4);
	__builtin_memcpy(&after, &to->source_port, 4);
	if (bpf_l4_csum_replace(ctx, at, 0, addresses, pseudo | zero))
		return -1;
	if (before == after)
		return 0;
	return bpf_l4_csum_replace(ctx, at, before, after, sizeof(after) | zero);
}

static __always_inline int translate_v4(struct __sk_buff *ctx, const struct packet *p,
					const struct tuple *to, __u32 addresses, int hops)
{
	struct iphdr *ip = linear_bytes(ctx, p->l3, sizeof(*ip));
	__u8 left = p->hops - hops;

	if (!ip)
		return -1;
	/* The TTL is the high byte of a 16-bit word. */
	ip->check = checksum_plus(
		ip->check,
		(__u64)addresses +
			(hops ? (__u16)~bpf_htons(p->hops << 8) + bpf_htons(left << 8) : 0));
	ip->ttl = left;
	ip->saddr = address_to_v4(&to->source);
	ip->daddr = address_to_v4(&to->destination);
	return 0;
}

/* CHECKSUM_COMPLETE stays correct if a checksum in the packet changes with the addresses. If none
 * does, an IPv6 header has no checksum that compensates for it. */
static __always_inline int translate_v6(struct __sk_buff *ctx, const struct packet *p,
					const struct tuple *to, int hops)
{
	const __u32 source = offsetof(struct ipv6hdr, saddr);
	__u8 left = p->hops - hops;
	void *addresses;

	if (!ports_change(p) && has_ports(p->tuple.protocol)) {
		if (bpf_skb_store_bytes(ctx, p->l3 + source, &to->source,
					2 * sizeof(struct address), BPF_F_RECOMPUTE_CSUM))
			return -1;
	} else {
		addresses = linear_bytes(ctx, p->l3 + source, 2 * sizeof(struct address));
		if (!addresses)
			return -1;
		__builtin_memcpy(addresses, &to->source, 2 * sizeof(struct address));
	}
	return hops ? bpf_skb_store_bytes(ctx, p->l3 + offsetof(struct ipv6hdr, hop_limit), &left,
					  sizeof(left), BPF_F_RECOMPUTE_CSUM)
		    : 0;
}

/* Rewrites the tuple and decrements the TTL. After an error drop the packet: it may be partly
 * changed. */
static __always_inline int packet_translate(struct __sk_buff *ctx, const struct packet *p,
					    const struct tuple *to, int hops)
{
	__u32 addresses = addresses_difference(p, to);
	void *ports;

	if (ports_change(p)) {
		ports = linear_bytes(ctx, p->l4, 2 * sizeof(__be16));
		if (!ports)
			return -1;
		__builtin_memcpy(ports, &to->source_port, 2 * sizeof(__be16));
	}
	if (p->is_v6 ? translate_v6(ctx, p, to, hops) : translate_v4(ctx, p, to, addresses, hops))
		return -1;
	return ports_change(p) ? translate_checksum(ctx, p, to, addresses) : 0;
}

/* Sets the length of the packet that replaces this one. The sender may have left the checksum to
 * the device (CHECKSUM_PARTIAL), which would sum the wrong bytes: the kernel clears that state when
 * it removes everything from the start of the summed range on. */
static __always_inline int packet_resize(struct __sk_buff *ctx, const struct packet *p,
					 __u32 length)
{
	__s32 away = p->l4 + 1;

	return bpf_skb_change_tail(ctx, length + away + 1, 0) ||
	       bpf_skb_adjust_room(ctx, -away, BPF_ADJ_ROOM_MAC, 0) ||
	       bpf_skb_adjust_room(ctx, -1, BPF_ADJ_ROOM_MAC, 0);
}

static __always_inline int packet_trim(struct __sk_buff *ctx, __u32 length)
{
	return bpf_skb_change_tail(ctx, length, 0);
}

static __always_inline int packet_store(struct __sk_buff *ctx, __u32 offset, const void *from,
					__u32 length)
{
	return bpf_skb_store_bytes(ctx, offset, from, length, 0);
}

/* FIXED_GSO: the segment size of merged packets does not change. */
static __always_inline int packet_cut(struct __sk_buff *ctx, __u32 kept, __u32 length)
{
	__u32 mode = kept == LINK_HEADER ? BPF_ADJ_ROOM_MAC : BPF_ADJ_ROOM_NET;

	return bpf_skb_adjust_room(ctx, -(__s32)length, mode, BPF_F_ADJ_ROOM_FIXED_GSO);
}

/* Adds a difference to a checksum in the packet. */
static __always_inline int packet_checksum(struct __sk_buff *ctx, __u32 offset, __s64 difference)
{
	return difference < 0 ? -1 : bpf_l4_csum_replace(ctx, offset, 0, difference, 0);
}

static __always_inline int packet_put(struct __sk_buff *ctx, __u32 offset, const void *from,
				      __u32 length)
{
	return bpf_skb_store_bytes(ctx, offset, from, length, BPF_F_RECOMPUTE_CSUM);
}

static __always_inline __be32 packet_decrement_ttl(struct __sk_buff *ctx, const struct packet *p)
{
	__u8 left = p->hops - 1;
	struct iphdr *ip = linear_bytes(ctx, p->l3, sizeof(*ip));
	__be32 word;

	if (!ip)
		return 0;
	__builtin_memcpy(&word, ip, sizeof(word));
	if (!p->is_v6) {
		ip->ttl = left;
		ip->check = checksum_plus(ip->check, (__u16)~bpf_htons(0x0100));
		return word;
	}
	return packet_put(ctx, p->l3 + offsetof(struct ipv6hdr, hop_limit), &left, 1) ? 0 : word;
}

/* The segment size of merged packets does not change; the caller has checked that segments fit. */
static __always_inline void *packet_push(struct __sk_buff *ctx, void *buffer, __u32 length,
					 enum push_kind kind)
{
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO;

	flags |= kind & PUSH_IPV6 ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 : BPF_F_ADJ_ROOM_ENCAP_L3_IPV4;
	if (kind & PUSH_UDP)
		flags |= BPF_F_ADJ_ROOM_ENCAP_L4_UDP;
	return bpf_skb_adjust_room(ctx, length, BPF_ADJ_ROOM_MAC, flags) ? 0 : buffer;
}

/* The words of an IPv4 header sum up to zero, so CHECKSUM_COMPLETE stays correct. */
static __always_inline int packet_pushed(struct __sk_buff *ctx, const void *at, __u32 length)
{
	void *outer;

	if (length == sizeof(struct iphdr)) {
		outer = linear_bytes(ctx, LINK_HEADER, sizeof(struct iphdr));
		if (!outer)
			return -1;
		__builtin_memcpy(outer, at, sizeof(struct iphdr));
		return 0;
	}
	return packet_put(ctx, LINK_HEADER, at, length);
}

/* The header is of the packet's family, without options. */
static __always_inline int packet_insert(struct __sk_buff *ctx, void *buffer, __u32 header,
					 __u32 length)
{
	return bpf_skb_adjust_room(ctx, length, BPF_ADJ_ROOM_NET, BPF_F_ADJ_ROOM_FIXED_GSO);
}

static __always_inline __u32 packet_mark(const struct __sk_buff *ctx)
{
	return ctx->mark;
}

static __always_inline __u32 packet_device(const struct __sk_buff *ctx)
{
	return ctx->ifindex;
}

static __always_inline enum action packet_pass(struct __sk_buff *ctx)
{
	return ACTION_PASS;
}

static __always_inline enum action packet_drop(struct __sk_buff *ctx)
{
	return ACTION_DROP;
}

/* Adds an Ethernet header if the packet has none: bpf_redirect_neigh drops packets without one, and
 * only a packet that passes on to another device is sent with it. Its addresses are zeros. */
static __always_inline int link_header_add(struct __sk_buff *ctx)
{
	return LINK_HEADER ? 0 : bpf_skb_change_head(ctx, sizeof(struct ethhdr), 0);
}

/* Sends the packet back out of its device; the MAC addresses are already set. A device without MAC
 * addresses may need the route of each packet (packet_forward). */
static __always_inline enum action packet_bounce(struct __sk_buff *ctx)
{
	packet_untag(ctx);
	if (LINK_HEADER)
		return bpf_redirect(ctx->ifindex, 0);
	return link_header_add(ctx) ? ACTION_DROP : bpf_redirect_neigh(ctx->ifindex, 0, 0, 0);
}

/* Redirects a packet to the ingress of its output device: to the node itself, or to its neighbour
 * behind that device. The MAC addresses are already set. */
static __always_inline enum action packet_redirect_ingress(struct __sk_buff *ctx)
{
	return bpf_redirect(ctx->ifindex, BPF_F_INGRESS);
}

/* Like packet_redirect_ingress, for a packet whose MAC addresses are those of the egress. */
static __always_inline enum action packet_redirect_self(struct __sk_buff *ctx)
{
	__u8 own[ETH_ALEN];

	if (LINK_HEADER &&
	    (bpf_skb_load_bytes(ctx, offsetof(struct ethhdr, h_source), own, sizeof(own)) ||
	     bpf_skb_store_bytes(ctx, offsetof(struct ethhdr, h_dest), own, sizeof(own), 0)))
		return ACTION_DROP;
	return packet_redirect_ingress(ctx);
}

/* Marks a packet for egress: this node has encapsulated it. */
static __always_inline void packet_mark_encapsulated(struct __sk_buff *ctx)
{
	ctx->mark = MARK_ENCAPSULATED;
}

/* The kernel has routed packets that leave the node; at another device it looks up the next hop for
 * each packet. */
static __always_inline enum action packet_redirect_neigh(struct __sk_buff *ctx, __u32 device)
{
	packet_untag(ctx);
	return link_header_add(ctx) ? ACTION_DROP : bpf_redirect_neigh(device, 0, 0, 0);
}
