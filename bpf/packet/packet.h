/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Packets, with the same operations for XDP and tc. The .bpf.c file includes packet/ctx_xdp.h or
 * packet/ctx_tc.h before this header, which define the following. Functions that return int
 * return 0 on success, unless they answer a question.
 *
 *   struct context              the context of the hook
 *   packet_bytes(ctx, off, len)
 *                               returns headers for reading, or 0; invalidates packet pointers
 *   linear_bytes(ctx, off, len)
 *                               the same for linear data only; keeps packet pointers valid
 *   packet_ethertype(ctx, eth)  ethertype; `eth` is the link-layer header
 *   packet_translate(ctx, p, to, hops)
 *                               writes another tuple, updates checksums, decrements the TTL
 *                               by hops
 *   packet_load, packet_store   copy bytes from and to the packet
 *   packet_resize(ctx, p, length)
 *                               changes the length, before the packet is overwritten
 *   packet_trim(ctx, length)    removes what follows the packet in its frame
 *   packet_cut(ctx, kept, length)
 *                               removes bytes after the link-layer header, or after an IP header
 *                               without options
 *   packet_checksum(ctx, off, difference)
 *                               adds a difference to a checksum
 *   packet_decrement_ttl(ctx, p)
 *                               decrements the TTL; returns the first word of the IP header,
 *                               0 on error
 *   packet_push(ctx, buffer, length, kind)
 *                               makes room for outer headers; returns where to write them,
 *                               which may be the buffer, or 0
 *   packet_pushed(ctx, at, length)
 *                               completes packet_push, after the headers have been written
 *   packet_insert(ctx, buffer, header, length)
 *                               makes room after an IP header of `header` bytes; the buffer
 *                               holds the link-layer header, the IP header and the new
 *                               bytes
 *   packet_put(ctx, off, from, length)
 *                               packet_store of bytes that change the sum of the packet
 *   packet_device(ctx)          interface index of the device
 *   packet_mark(ctx)            the mark
 *   packet_length(ctx)          length with the link-layer header and padding
 *   packet_reaches(ctx, end)    whether the packet is at least `end` bytes long
 *   packet_has_trailer(ctx, end)
 *                               whether bytes follow the packet's end in its frame
 *   packet_sum_verified(ctx)    whether the device has verified the checksum of layer 4
 *   packet_segment(ctx)         payload of layer 4 per segment if GRO has merged several,
 *                               else 0
 *   packet_tagged(ctx)          whether the kernel has removed a VLAN tag of another network
 *   packet_is_for_node(ctx, own)
 *                               whether the frame is addressed to this node
 *   packet_pass, _drop, _bounce, _redirect_*, _forward
 *                               return values of the hook */
#pragma once

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>

#include "packet/csum.h"
#include "packet/types.h"

#define IP_DONT_FRAGMENT   0x4000
#define IP_MORE_FRAGMENTS  0x2000
#define IP_FRAGMENT_OFFSET 0x1fff

/* What packet_push makes room for. */
enum push_kind {
	PUSH_IPV4 = 1,
	PUSH_IPV6 = 2,
	PUSH_UDP = 4, /* in addition */
};

/* The MAC address of a device, cached from the last packet for this node. */
struct own_mac {
	__u32 device;
	__u8 mac[ETH_ALEN];
	__u8 reserved[2];
};

enum fragment_kind {
	FRAGMENT_NONE,
	FRAGMENT_FIRST,
	FRAGMENT_LATER, /* has no header of layer 4 */
};

enum tcp_flag {
	TCP_FIN = 1,
	TCP_SYN = 2,
	TCP_RST = 4,
	TCP_PSH = 8,
	TCP_ACK = 16,
	TCP_URG = 32,
};

static __always_inline __u8 tcp_flags(const struct tcphdr *tcp)
{
	return ((const __u8 *)tcp)[13];
}

/* The bits of both values of PSH, which goes with all other flags. */
#define WITH_FLAGS(flags) (1ull << (flags) | 1ull << ((flags) | TCP_PSH))

/* Returns whether flags of TCP may go together. The kernel's conntrack calls other segments
 * invalid, and netfilter does not translate them (tcp_valid_flags in nf_conntrack_proto_tcp.c). */
static __always_inline int tcp_flags_are_valid(__u8 flags)
{
	const __u64 valid = WITH_FLAGS(TCP_SYN) | WITH_FLAGS(TCP_SYN | TCP_URG) |
			    WITH_FLAGS(TCP_SYN | TCP_ACK) | WITH_FLAGS(TCP_RST) |
			    WITH_FLAGS(TCP_RST | TCP_ACK) | WITH_FLAGS(TCP_FIN | TCP_ACK) |
			    WITH_FLAGS(TCP_FIN | TCP_ACK | TCP_URG) | WITH_FLAGS(TCP_ACK) |
			    WITH_FLAGS(TCP_ACK | TCP_URG);

	return valid >> (flags & 0x3f) & 1;
}

/* RFC 9260 section 3, with the header of the first chunk. Of the chunks that open and close an
 * association only ABORT may follow another chunk. */
struct sctp_header {
	__be16 source;
	__be16 dest;
	__be32 tag;
	__le32 checksum; /* CRC32c over the SCTP packet; covers the ports, but no addresses */
	__u8 chunk;	 /* enum sctp_chunk, or another type */
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

/* The parsed headers of a packet. Offsets are in bytes from the start of the link-layer header. */
struct packet {
	struct tuple tuple;
	__u32 l3;
	__u32 l4;
	__u32 length; /* by the IP header, including it */
	__u32 fragment_id;
	__u32 sequence, acknowledged, payload; /* TCP, in host byte order */
	__u8 is_v6;
	__u8 fragment;	/* enum fragment_kind */
	__u8 tcp_flags; /* SCTP: the equivalent flags (sctp_flags) */
	__u8 hops;	/* TTL or hop limit */
	__u8 tos;	/* IPv6: the traffic class */
	__u8 reserved[3];
};

enum parsed {
	PARSED,		  /* a tuple with ports, or a later fragment without ports */
	PARSED_OTHER,	  /* not IP, or a protocol without ports */
	PARSED_MALFORMED, /* inconsistent IP, TCP, UDP or SCTP headers, a wrong checksum of the IPv4
			    header, or flags of TCP that no stack sends together */
};

static __always_inline int has_ports(__u8 protocol)
{
	return protocol == IPPROTO_TCP || protocol == IPPROTO_UDP || protocol == IPPROTO_SCTP;
}

/* Returns whether the ports of a packet can be rewritten, and its checksum covers the tuple. */
static __always_inline int ports_change(const struct packet *p)
{
	return p->fragment != FRAGMENT_LATER && p->tuple.protocol != IPPROTO_SCTP;
}

/* Returns the offset of the checksum of layer 4. */
static __always_inline __u32 checksum_offset(const struct packet *p)
{
	return p->l4 + (p->tuple.protocol == IPPROTO_TCP ? offsetof(struct tcphdr, check)
							 : offsetof(struct udphdr, check));
}

/* Returns the difference that other addresses make to checksums. Of IPv4-mapped addresses only the
 * last words differ. */
static __always_inline __u32 addresses_difference(const struct packet *p, const struct tuple *to)
{
	const __u32 *from = (const __u32 *)&p->tuple, *other = (const __u32 *)to;

	if (p->is_v6)
		return checksum_difference(from, other, 8, 0);
	return checksum_difference(from + 3, other + 3, 1,
				   checksum_difference(from + 7, other + 7, 1, 0));
}
