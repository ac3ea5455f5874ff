/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The length of packets on the wire, and of what follows them in their frames. */
#pragma once

#include <linux/in.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include <linux/types.h>

#include "packet/packet.h"

/* Returns the length of headers that are not sent: a merged packet that is too long for the length
 * field has a hop-by-hop option with its length (RFC 2675) until the kernel splits it (BIG TCP). */
static __always_inline __u32 unsent_header(const struct packet *p)
{
	__u32 header = sizeof(struct ipv6hdr);

	return p->is_v6 && p->length > header + 0xffff ? p->l4 - p->l3 - header : 0;
}

/* Returns the length on the wire, from the IP header on; of one segment if several were merged. 0
 * if the kernel fits the segments to the MTU (SCTP). */
static __always_inline __u32 wire_length(struct context *ctx, const struct packet *p)
{
	__u32 segment = packet_segment(ctx), header = sizeof(struct udphdr);
	__u8 words; /* TCP's data offset: the high four bits of byte 12 */

	if (!segment)
		return p->length;
	if (p->tuple.protocol == IPPROTO_SCTP)
		return 0;
	if (p->tuple.protocol == IPPROTO_TCP)
		header =
			packet_load(ctx, p->l4 + 12, &words, sizeof(words)) ? 20 : (words >> 4) * 4;
	return p->l4 - p->l3 - unsent_header(p) + header + segment;
}

/* Returns where a packet ends in its frame. */
static __always_inline __u32 packet_end(const struct packet *p)
{
	return p->l3 + p->length;
}

/* Removes what follows a packet in its frame, from an offset on, as the stack does (ip_rcv_core,
 * ip6_rcv_core). Merged packets cannot be trimmed: the helper would make one segment of them, and
 * what follows would be payload of the last one. Returns 0 on success, or if nothing follows. */
static __always_inline int frame_trim(struct context *ctx, __u32 end)
{
	if (!packet_has_trailer(ctx, end))
		return 0;
	return packet_segment(ctx) || packet_trim(ctx, end);
}
