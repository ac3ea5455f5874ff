/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Cuts apart an IPv4 packet that is too big for its way and may be fragmented (RFC 791
 * section 3.2). Nothing on the edge's ways out does: bpf_redirect_neigh sends what it is
 * given. So it is done before the packet is translated, and the pieces come to the same
 * hook again, the first one first: from there on they are a datagram that has come in
 * fragments, and no part of the edge knows of another kind. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "answer.h"
#include "checksum.h"
#include "packet.h"
#include "packet_sum.h"
#include "track.h"

static __always_inline int dont_fragment(struct context *ctx, const struct packet *p)
{
	__be16 flags;

	return packet_load(ctx, p->l3 + offsetof(struct iphdr, frag_off), &flags, sizeof(flags)) ||
	       flags & bpf_htons(IP_DONT_FRAGMENT);
}

/* Whether a packet that is too big for its way is for this node to cut. Of one that GRO
 * has put together the kernel would cut each segment; here they are not told apart. */
static __always_inline int may_fragment(struct context *ctx, const struct packet *p)
{
	return !p->is_v6 && !packet_segment(ctx) && !dont_fragment(ctx, p);
}

#ifndef EDGE_XDP
/* In one run; the rest, still too big, comes again as the last piece. */
#define PIECES	  16
/* Of payload, a multiple of 8: bpf_skb_adjust_room takes no more than 0xfff away. */
#define PIECE_MAX 4088
/* The kernel forgets that a device is to make the checksum when the packet begins behind
 * the place that is to be summed from: not all kernels at once, but as more is taken away
 * then. Even, so that a sum of the whole stays right. */
#define SHAKEN	  (sizeof(struct ethhdr) + sizeof(struct iphdr) + 4)

/* Makes the checksum that a sender on this machine has left to a device, which would make
 * it of one piece. Nothing tells a program of that but the field: it has the sum of the
 * pseudo header then. A right checksum that happens to be the same is made again as it was. */
static __always_inline int settle_checksum(struct __sk_buff *ctx, const struct packet *p)
{
	__u32 length = p->length - sizeof(struct iphdr), at = checksum_offset(p), sctp;
	__be32 pseudo[3] = {address_to_v4(&p->tuple.source), address_to_v4(&p->tuple.destination),
			    bpf_htonl(p->tuple.protocol << 16 | length)};
	__u8 head[SHAKEN];
	__sum16 check;
	__s64 sum;

	if (p->fragment)
		return 0;
	if (p->tuple.protocol == IPPROTO_SCTP) /* a CRC: no helper makes it, and 0 is none */
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
	       bpf_skb_adjust_room(ctx, 2 - (__s32)SHAKEN, BPF_ADJ_ROOM_MAC, 0) ||
	       bpf_skb_adjust_room(ctx, -2, BPF_ADJ_ROOM_MAC, 0) ||
	       bpf_skb_adjust_room(ctx, SHAKEN, BPF_ADJ_ROOM_MAC, 0) ||
	       bpf_skb_store_bytes(ctx, p->l3, head, sizeof(head), BPF_F_RECOMPUTE_CSUM);
}

/* Makes the packet begin as a piece; what follows that is for the next ones. */
static __always_inline int write_piece(struct __sk_buff *ctx, struct iphdr *ip, __u32 length,
				       __u32 offset)
{
	ip->tot_len = bpf_htons(sizeof(*ip) + length);
	ip->frag_off = bpf_htons(offset);
	ip->check = 0;
	ip->check = checksum_of(bpf_csum_diff(0, 0, (__be32 *)ip, sizeof(*ip), 0));
	return bpf_skb_store_bytes(ctx, sizeof(struct ethhdr), ip, sizeof(*ip),
				   BPF_F_RECOMPUTE_CSUM);
}

/* Reads the header of a packet that is to be cut. One with options is not: some of them are
 * for the first piece alone. The pieces' headers are made anew, which must not hide that
 * this one is damaged. */
static __always_inline int header_to_cut(struct __sk_buff *ctx, const struct packet *p,
					 struct iphdr *ip)
{
	__u32 length = p->length - sizeof(*ip);

	if (p->l3 != sizeof(struct ethhdr) || p->l4 != sizeof(struct ethhdr) + sizeof(*ip) ||
	    packet_load(ctx, sizeof(struct ethhdr), ip, sizeof(*ip)) ||
	    checksum_of(bpf_csum_diff(0, 0, (__be32 *)ip, sizeof(*ip), 0)))
		return -1;
	return (bpf_ntohs(ip->frag_off) & IP_FRAGMENT_OFFSET) * 8 + length > 0xffff;
}

struct pieces {
	struct __sk_buff *ctx;
	struct iphdr ip;
	__u32 device;
	__u32 flags;
	__u32 size;   /* of payload, of each */
	__u32 left;   /* of it */
	__u32 offset; /* in 8 octets */
	__u32 failed;
};

/* Sends one piece, if it is not the last. */
static long piece_step(__u32 i, struct pieces *p)
{
	if (p->left <= p->size)
		return 1;
	if (write_piece(p->ctx, &p->ip, p->size, p->offset | IP_MORE_FRAGMENTS) ||
	    bpf_clone_redirect(p->ctx, p->device, p->flags) < 0 ||
	    bpf_skb_adjust_room(p->ctx, -(__s32)p->size, BPF_ADJ_ROOM_MAC, 0)) {
		p->failed = 1;
		return 1;
	}
	p->left -= p->size;
	p->offset += p->size / 8;
	return 0;
}

/* Sends the pieces to the hook that the packet is at. Returns what the program does; less
 * than 0 where it cannot be done. A packet that leaves is worked on in the midst of this:
 * nothing of the workspace is good after the first piece. */
__noinline int fragment(struct __sk_buff *ctx, __u32 mtu)
{
	struct pieces p = {.ctx = ctx, .device = packet_device(ctx)};
	__u32 zero = 0, more;
	struct workspace *w = bpf_map_lookup_elem(&workspaces, &zero);

	if (!w || mtu < sizeof(p.ip) + 8 || w->packet.length <= mtu ||
	    header_to_cut(ctx, &w->packet, &p.ip) || settle_checksum(ctx, &w->packet))
		return -1;
	p.size = (mtu - sizeof(p.ip)) & ~7u;
	if (p.size > PIECE_MAX)
		p.size = PIECE_MAX;
	p.left = w->packet.length - sizeof(p.ip);
	p.offset = bpf_ntohs(p.ip.frag_off) & IP_FRAGMENT_OFFSET;
	more = bpf_ntohs(p.ip.frag_off) & IP_MORE_FRAGMENTS;
	p.flags = w->leaving ? 0 : BPF_F_INGRESS;
	bpf_loop(PIECES, piece_step, &p, 0);
	if (p.failed || write_piece(ctx, &p.ip, p.left, p.offset | more))
		return -1;
	return bpf_redirect(p.device, p.flags);
}
#endif
