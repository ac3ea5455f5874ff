/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Packets as tc has them: in pieces, perhaps with a checksum that a device is yet
 * to make, or with a sum that one has made. Only the kernel knows, so what these are of is
 * changed by its helpers. Other bytes are written where they are: the kernel sees to it, before
 * the program begins, that those in one piece belong to this packet alone. A connection's sender
 * still holds its payload, which is not among them; of what somebody listens to on the device
 * the kernel copies the headers. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define context __sk_buff
#define IS_XDP	0

#include "edge_tables.h"
#include "headers.h"

/* BPF_F_PSEUDO_HDR for IPv6: with BPF_F_IPV6, where the kernel has it (Linux
 * 6.16). Set by the loader. */
const volatile __u64 pseudo_header_v6 = BPF_F_PSEUDO_HDR;

static __always_inline void *linear_bytes(struct __sk_buff *ctx, __u32 offset, __u32 length)
{
	void *data = PACKET_POINTER(ctx, data), *end = PACKET_POINTER(ctx, data_end);

	/* Compared here, whatever the compiler knows of it: the verifier of Linux 6.1 forgets
	 * the bounds of what has been on the stack. */
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

static __always_inline __u32 packet_length(const struct __sk_buff *ctx)
{
	return ctx->len;
}

static __always_inline int packet_reaches(const struct __sk_buff *ctx, __u32 end)
{
	return end <= packet_length(ctx);
}

static __always_inline __u32 packet_segment(const struct __sk_buff *ctx)
{
	return ctx->gso_size;
}

/* A tag with VID 0 names no network, only a priority (IEEE 802.1Q): the stack, too, takes such a
 * frame for the device's own. */
static __always_inline int packet_tagged(const struct __sk_buff *ctx)
{
	return ctx->vlan_present &&
	       (ctx->vlan_tci & VLAN_ID || ctx->vlan_proto != bpf_htons(ETH_P_8021Q));
}

/* Takes away the tag of a frame that is about to leave: its priority was for the link that it has
 * come by. What goes to the stack loses it there. */
static __always_inline void packet_untag(struct __sk_buff *ctx)
{
	if (ctx->vlan_present)
		bpf_skb_vlan_pop(ctx);
}

static __always_inline int packet_load(struct __sk_buff *ctx, __u32 offset, void *to, __u32 length)
{
	return bpf_skb_load_bytes(ctx, offset, to, length);
}

#include "checksum.h"
#include "packet.h"

static __always_inline int packet_ours(const struct __sk_buff *ctx, struct own_mac *own)
{
	return ctx->pkt_type == PACKET_HOST;
}

/* Has the checksum of layer 4 fit other ends. */
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
	/* The TTL is the high byte of a word. */
	ip->check = checksum_plus(
		ip->check,
		(__u64)addresses +
			(hops ? (__u16)~bpf_htons(p->hops << 8) + bpf_htons(left << 8) : 0));
	ip->ttl = left;
	ip->saddr = address_to_v4(&to->source);
	ip->daddr = address_to_v4(&to->destination);
	return 0;
}

/* A device may have summed the packet up. That stays right where a checksum in the packet changes
 * with it; nothing in an IPv6 header makes up for the header. */
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

/* Gives the packet other ends, and takes hops off. On error it is not to leave: it may
 * be half changed. */
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

/* Makes room for what takes the packet's place. Its sender may have left the checksum
 * to the device, which would make it of other bytes then: the kernel forgets that as it
 * takes more away after the bytes that were to be summed. */
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

/* FIXED_GSO: the segments that GRO has put together keep their length. */
static __always_inline int packet_cut(struct __sk_buff *ctx, __u32 kept, __u32 length)
{
	__u32 mode = kept == sizeof(struct ethhdr) ? BPF_ADJ_ROOM_MAC : BPF_ADJ_ROOM_NET;

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

static __always_inline __be32 packet_age(struct __sk_buff *ctx, const struct packet *p)
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

/* The segments of what has been put together stay as long as they are: that they fit is
 * known. */
static __always_inline void *packet_push(struct __sk_buff *ctx, void *buffer, __u32 length,
					 enum room_kind kind)
{
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO;

	flags |= kind & ROOM_IPV6 ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 : BPF_F_ADJ_ROOM_ENCAP_L3_IPV4;
	if (kind & ROOM_UDP)
		flags |= BPF_F_ADJ_ROOM_ENCAP_L4_UDP;
	return bpf_skb_adjust_room(ctx, length, BPF_ADJ_ROOM_MAC, flags) ? 0 : buffer;
}

/* The sum of all words of an IPv4 header is zero: what a device has summed up stays right. */
static __always_inline int packet_pushed(struct __sk_buff *ctx, const void *at, __u32 length)
{
	void *outer;

	if (length == sizeof(struct iphdr)) {
		outer = linear_bytes(ctx, sizeof(struct ethhdr), sizeof(struct iphdr));
		if (!outer)
			return -1;
		__builtin_memcpy(outer, at, sizeof(struct iphdr));
		return 0;
	}
	return packet_put(ctx, sizeof(struct ethhdr), at, length);
}

/* The header is that of the packet's family, without options. */
static __always_inline int packet_insert(struct __sk_buff *ctx, void *buffer, __u32 header,
					 __u32 length)
{
	return bpf_skb_adjust_room(ctx, length, BPF_ADJ_ROOM_NET, BPF_F_ADJ_ROOM_FIXED_GSO);
}

static __always_inline __u32 packet_device(const struct __sk_buff *ctx)
{
	return ctx->ifindex;
}

static __always_inline int packet_pass(struct __sk_buff *ctx)
{
	return TC_ACT_UNSPEC; /* whoever comes next */
}

static __always_inline int packet_drop(struct __sk_buff *ctx)
{
	return TC_ACT_SHOT;
}

/* Back to where it came from; the MAC addresses are already right. */
static __always_inline int packet_bounce(struct __sk_buff *ctx)
{
	packet_untag(ctx);
	return bpf_redirect(ctx->ifindex, 0);
}

/* In by the device that it was about to leave by: to the node itself, or to what is
 * behind it. The MAC addresses are already right. */
static __always_inline int packet_return(struct __sk_buff *ctx)
{
	return bpf_redirect(ctx->ifindex, BPF_F_INGRESS);
}

/* The same of a packet whose MAC addresses are those of its way out. */
static __always_inline int packet_turn_in(struct __sk_buff *ctx)
{
	__u8 own[ETH_ALEN];

	if (bpf_skb_load_bytes(ctx, offsetof(struct ethhdr, h_source), own, sizeof(own)) ||
	    bpf_skb_store_bytes(ctx, offsetof(struct ethhdr, h_dest), own, sizeof(own), 0))
		return TC_ACT_SHOT;
	return packet_return(ctx);
}

/* Has egress know that it is this node which has put something around the packet. */
static __always_inline void packet_vouch(struct __sk_buff *ctx)
{
	ctx->mark = MARK_ENCAPSULATED;
}

/* Out of a device, to the next hop of its route, by way of the kernel: then it knows that its
 * neighbour is in use, and asks whether he is there still. To one that it has found a moment
 * ago the packet goes without that. Both are the same next hop: the kernel's own look-up for
 * packets that leave by a device would take another one where there are several, or where
 * rules ask for a source. */
static __always_inline int packet_forward(struct __sk_buff *ctx, const struct bpf_fib_lookup *fib,
					  int remembered)
{
	struct bpf_redir_neigh next = {};
	struct ethhdr *eth;

	packet_untag(ctx);
	if (!remembered && !is_ethernet(fib->ifindex))
		return bpf_redirect_neigh(fib->ifindex, 0, 0, 0);
	if (!remembered) {
		next.nh_family = fib->family;
		__builtin_memcpy(next.ipv6_nh, fib->ipv6_dst, sizeof(next.ipv6_nh));
		return bpf_redirect_neigh(fib->ifindex, &next, sizeof(next), 0);
	}
	eth = linear_bytes(ctx, 0, sizeof(*eth));
	if (!eth)
		return TC_ACT_SHOT;
	mac_copy(eth->h_dest, fib->dmac);
	mac_copy(eth->h_source, fib->smac);
	return bpf_redirect(fib->ifindex, 0);
}

/* What leaves the node has been routed by the kernel already, which finds the next hop at the
 * other device itself, for each packet alike. */
static __always_inline int packet_leave(struct __sk_buff *ctx, __u32 device)
{
	packet_untag(ctx);
	return bpf_redirect_neigh(device, 0, 0, 0);
}
