/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Packets, the same for XDP and tc. The entry includes packet_xdp.h or
 * packet_tc.h before this, which give
 *
 *   struct context                  what the hook is called with
 *   packet_bytes(ctx, off, len)     headers for reading: a pointer, or 0; it makes
 *                                   pointers from before worthless
 *   linear_bytes(ctx, off, len)     the same, but only where they are at hand; it leaves
 *                                   pointers as they are
 *   packet_translate(ctx, p, to, hops)
 *                                   other ends, right checksums, so many hops less
 *   packet_load, _store, _resize    copies of bytes, and another length
 *   packet_trim(ctx, length)        takes away what is behind the packet in its frame
 *   packet_cut(ctx, kept, length)   takes away what is behind the Ethernet header, or behind
 *                                   the IP header without options
 *   packet_checksum(ctx, off, difference)
 *   packet_age(ctx, p)              takes a hop off, and returns the IP header's first word;
 *                                   0 on error
 *   packet_push(ctx, buffer, length, kind)
 *                                   room for headers before the packet's own: a pointer to
 *                                   where they are written, perhaps the buffer, or 0
 *   packet_pushed(ctx, at, length)  after they have been written there
 *   packet_insert(ctx, buffer, header, length)
 *                                   room behind an IP header of so many bytes; the buffer
 *                                   holds that and Ethernet's
 *   packet_put(ctx, off, from, length)
 *                                   packet_store of what no checksum in the packet makes up
 *                                   for
 *   packet_device(ctx)              where the packet is
 *   packet_length(ctx)              with the Ethernet header and what pads it
 *   packet_reaches(ctx, end)        whether that is so much, or more
 *   packet_segment(ctx)             how much of layer 4's payload each of several has that
 *                                   were put together (GRO); 0: it is one
 *   packet_tagged(ctx)              whether the kernel has taken a VLAN tag from it that
 *                                   names another network
 *   packet_ours(ctx, own)           whether the frame is addressed to this node
 *   packet_pass, _drop, _bounce, _return, _forward
 *                                   what the hook returns
 */
#pragma once

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>

#include "address.h"
#include "checksum.h"
#include "edge_types.h"

#define IP_DONT_FRAGMENT   0x4000
#define IP_MORE_FRAGMENTS  0x2000
#define IP_FRAGMENT_OFFSET 0x1fff

/* What packet_push makes room for. */
enum room_kind {
	ROOM_IPV4 = 1,
	ROOM_IPV6 = 2,
	ROOM_UDP = 4, /* too */
};

/* The MAC address of a device: that of the last packet for this node. */
struct own_mac {
	__u32 device;
	__u8 mac[ETH_ALEN];
	__u8 reserved[2];
};

enum fragment_kind {
	FRAGMENT_NONE,
	FRAGMENT_FIRST,
	FRAGMENT_LATER, /* without a header of layer 4 */
};

enum tcp_flag {
	TCP_FIN = 1,
	TCP_SYN = 2,
	TCP_RST = 4,
	TCP_ACK = 16,
};

/* RFC 9260 section 3, with the first chunk's header. Of the chunks that begin and end an
 * association ABORT alone may be further in. */
struct sctp_header {
	__be16 source;
	__be16 dest;
	__be32 tag;
	__le32 checksum; /* CRC32c: of the packet from its ports on, and of no address */
	__u8 chunk;	 /* enum sctp_chunk, or another */
	__u8 flags;
	__be16 length;
};

enum sctp_chunk {
	SCTP_INIT = 1,
	SCTP_ABORT = 6,
	SCTP_SHUTDOWN = 7,
	SCTP_SHUTDOWN_ACK = 8,
	SCTP_SHUTDOWN_COMPLETE = 14,
};

/* What has been read of a packet's headers. Offsets are from the beginning of
 * the Ethernet header. */
struct packet {
	struct tuple tuple;
	__u32 l3;
	__u32 l4;
	__u32 length; /* from the IP header on, as that says */
	__u32 fragment_id;
	__u32 sequence, acknowledged, payload; /* of TCP; in host byte order */
	__u8 is_v6;
	__u8 fragment;	/* enum fragment_kind */
	__u8 tcp_flags; /* of SCTP: those that say the same */
	__u8 hops;	/* TTL, hop limit */
};

enum parsed {
	PARSED,		  /* a tuple with ports, or a later fragment without */
	PARSED_OTHER,	  /* not IP, or a protocol without ports */
	PARSED_MALFORMED, /* IP that contradicts itself */
};

static __always_inline int has_ports(__u8 protocol)
{
	return protocol == IPPROTO_TCP || protocol == IPPROTO_UDP || protocol == IPPROTO_SCTP;
}

/* Whether a packet has ports that may change, and a checksum that changes with the ends. */
static __always_inline int ports_change(const struct packet *p)
{
	return p->fragment != FRAGMENT_LATER && p->tuple.protocol != IPPROTO_SCTP;
}

/* Where the checksum of layer 4 is. */
static __always_inline __u32 checksum_offset(const struct packet *p)
{
	return p->l4 + (p->tuple.protocol == IPPROTO_TCP ? offsetof(struct tcphdr, check)
							 : offsetof(struct udphdr, check));
}

/* What takes checksums to a packet's other addresses. Of one of IPv4 only the last words differ. */
static __always_inline __u32 addresses_difference(const struct packet *p, const struct tuple *to)
{
	const __u32 *from = (const __u32 *)&p->tuple, *other = (const __u32 *)to;

	if (p->is_v6)
		return checksum_difference(from, other, 8, 0);
	return checksum_difference(from + 3, other + 3, 1,
				   checksum_difference(from + 7, other + 7, 1, 0));
}
