/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Fragments an IPv4 packet that exceeds the MTU and may be fragmented (RFC 791 section 3.2).
 * bpf_redirect_neigh does not fragment. So the packet is fragmented before it is translated, and
 * the fragments pass the same hook again, the first one first: from there on they are handled like
 * received fragments. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "icmp/packet_sum.h"
#include "lb/address.h"
#include "packet/csum.h"
#include "packet/packet.h"
#include "state/scratch.h"

static __always_inline int dont_fragment(struct context *ctx, const struct packet *p)
{
	__be16 flags;

	return packet_load(ctx, p->l3 + offsetof(struct iphdr, frag_off), &flags, sizeof(flags)) ||
	       flags & bpf_htons(IP_DONT_FRAGMENT);
}

/* Returns whether this node fragments a packet that is too big. Not if GRO has merged it: the
 * kernel would fragment each segment, but they are not separate here. */
static __always_inline int may_fragment(struct context *ctx, const struct packet *p)
{
	return !p->is_v6 && !packet_segment(ctx) && !dont_fragment(ctx, p);
}

#ifndef EDGE_XDP
/* Fragments per run; the rest, still too big, passes the hook again as the last fragment. */
#define FRAGMENTS_MAX	     16
/* Bytes of payload, a multiple of 8: bpf_skb_adjust_room removes at most 0xfff bytes. */
#define FRAGMENT_PAYLOAD_MAX 4088
/* Bytes to remove so that the kernel clears CHECKSUM_PARTIAL. It does so when the packet starts
 * beyond the start of the summed range; some kernels only at the next removal. Even, so that
 * CHECKSUM_COMPLETE stays correct. */
#define CHECKSUM_PULL	     (LINK_HEADER + sizeof(struct iphdr) + 4)

/* Computes a checksum that a local sender has left to the device, which would compute it over one
 * fragment. A program can recognise this only by the field, which then has the sum of the pseudo
 * header. A correct checksum that happens to be equal is recomputed to the same value. */
static __always_inline int complete_checksum(struct __sk_buff *ctx, const struct packet *p)
{
	__u32 length = p->length - sizeof(struct iphdr), at = checksum_offset(p), sctp;
	__be32 pseudo[3] = {address_to_v4(&p->tuple.source), address_to_v4(&p->tuple.destination),
			    bpf_htonl(p->tuple.protocol << 16 | length)};
	__u8 head[CHECKSUM_PULL];
	__sum16 check;
	__s64 sum;

	if (p->fragment)
		return 0;
	if (p->tuple.protocol ==
	    IPPROTO_SCTP) /* no helper computes its CRC32c, and 0 is not valid */
		return packet_load(ctx, p->l4 + offsetof(struct sctp_header, checksum), &sctp,
				   sizeof(sctp)) ||
		       !sctp;
	if (packet_load(ctx, at, &check, sizeof(check)))
		return -1;
	sum = bpf_csum_diff(0, 0, pseudo, sizeof(pseudo), 0);
	if (sum < 0 || check != (__sum16)~checksum_of(sum))
		return sum < 0;
	sum = packet_sum(ctx, p->l4, length);
	if (sum < 0)
		return -1;
	check = checksum_of(sum);
	if (!check && p->tuple.protocol == IPPROTO_UDP)
		check = 0xffff;
	return bpf_skb_store_bytes(ctx, at, &check, sizeof(check), BPF_F_RECOMPUTE_CSUM) ||
	       packet_load(ctx, p->l3, head, sizeof(head)) ||
	       bpf_skb_adjust_room(ctx, 2 - (__s32)CHECKSUM_PULL, BPF_ADJ_ROOM_MAC, 0) ||
	       bpf_skb_adjust_room(ctx, -2, BPF_ADJ_ROOM_MAC, 0) ||
	       bpf_skb_adjust_room(ctx, CHECKSUM_PULL, BPF_ADJ_ROOM_MAC, 0) ||
	       bpf_skb_store_bytes(ctx, p->l3, head, sizeof(head), BPF_F_RECOMPUTE_CSUM);
}

/* Turns the packet into a fragment; the payload after it is for the following fragments. */
static __always_inline int fragment_write(struct __sk_buff *ctx, struct iphdr *ip, __u32 length,
					  __u32 offset)
{
	ip->tot_len = bpf_htons(sizeof(*ip) + length);
	ip->frag_off = bpf_htons(offset);
	ip->check = 0;
	ip->check = checksum_of(bpf_csum_diff(0, 0, (__be32 *)ip, sizeof(*ip), 0));
	return bpf_skb_store_bytes(ctx, LINK_HEADER, ip, sizeof(*ip), BPF_F_RECOMPUTE_CSUM);
}

/* Reads the IP header of a packet to fragment. Returns an error for options, some of which belong
 * only in the first fragment. */
static __always_inline int fragment_header(struct __sk_buff *ctx, const struct packet *p,
					   struct iphdr *ip)
{
	__u32 length = p->length - sizeof(*ip);

	if (p->l3 != LINK_HEADER || p->l4 != LINK_HEADER + sizeof(*ip) ||
	    packet_load(ctx, LINK_HEADER, ip, sizeof(*ip)))
		return -1;
	return (bpf_ntohs(ip->frag_off) & IP_FRAGMENT_OFFSET) * 8 + length > 0xffff;
}

struct fragmentation {
	struct __sk_buff *ctx;
	struct iphdr ip;
	__u32 device;
	__u32 flags;
	__u32 size;   /* payload of each fragment */
	__u32 left;   /* payload left */
	__u32 offset; /* in units of 8 octets */
	__u32 failed;
};

/* Sends one fragment, unless it is the last. */
static long fragment_step(__u32 i, struct fragmentation *p)
{
	if (p->left <= p->size)
		return 1;
	if (fragment_write(p->ctx, &p->ip, p->size, p->offset | IP_MORE_FRAGMENTS) ||
	    bpf_clone_redirect(p->ctx, p->device, p->flags) < 0 ||
	    bpf_skb_adjust_room(p->ctx, -(__s32)p->size, BPF_ADJ_ROOM_MAC, 0)) {
		p->failed = 1;
		return 1;
	}
	p->left -= p->size;
	p->offset += p->size / 8;
	return 0;
}

/* Fragments a packet and sends the fragments to the same hook. ACTION_CONTINUE on error. An egress
 * packet is handled recursively: the scratch area is overwritten after the first fragment. */
__noinline enum action fragment(struct __sk_buff *ctx, __u32 mtu)
{
	struct fragmentation p = {.ctx = ctx, .device = packet_device(ctx)};
	__u32 more;
	struct scratch *w = scratch_get();

	if (!w || mtu < sizeof(p.ip) + 8 || w->packet.length <= mtu ||
	    fragment_header(ctx, &w->packet, &p.ip) || complete_checksum(ctx, &w->packet))
		return ACTION_CONTINUE;
	bpf_csum_level(ctx, BPF_CSUM_LEVEL_RESET); /* nobody has verified a fragment */
	p.size = (mtu - sizeof(p.ip)) & ~7u;
	if (p.size > FRAGMENT_PAYLOAD_MAX)
		p.size = FRAGMENT_PAYLOAD_MAX;
	p.left = w->packet.length - sizeof(p.ip);
	p.offset = bpf_ntohs(p.ip.frag_off) & IP_FRAGMENT_OFFSET;
	more = bpf_ntohs(p.ip.frag_off) & IP_MORE_FRAGMENTS;
	p.flags = w->in.egress ? 0 : BPF_F_INGRESS;
	bpf_loop(FRAGMENTS_MAX, fragment_step, &p, 0);
	if (p.failed || fragment_write(ctx, &p.ip, p.left, p.offset | more))
		return ACTION_CONTINUE;
	return bpf_redirect(p.device, p.flags);
}
#endif
