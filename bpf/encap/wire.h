/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Formats of packets from a balancer to a backend's node (direct server return; enum dsr). All
 * fields are in network byte order.
 *
 *   IPIP     an IP header before the client's packet, to the backend itself (RFC 2003; IPv6:
 *            RFC 2473). It carries no port: the backend's node looks it up in its own tables.
 *   Geneve   IP, UDP and Geneve before the client's packet (RFC 8926), to the backend's node,
 *            without an inner Ethernet header; one option carries the backend.
 *   option   the client's packet, sent to the backend; its first option carries the original
 *            destination: an option of the IPv4 header, or an IPv6 destination options header
 *            right after the IPv6 header.
 *
 * An ICMP error about a packet that a backend has sent from the Service's address takes the same
 * path, with the address of the reporting host: in a tunnel it is unchanged, to the VIP; with the
 * option it is sent to the backend, and ICMPv6's checksum covers these addresses. The option then
 * carries the port from the quote.
 *
 * The numbers of the Geneve, IPv4 and IPv6 options are from the experimental ranges (RFC 8926
 * section 7, RFC 4727). */
#pragma once

#include <linux/types.h>

#include "lb/types.h"

#define GENEVE_PORT	       6081
#define GENEVE_OPTION_CLASS    0xffbe
#define GENEVE_OPTION_BACKEND  0x81 /* critical: receivers that do not know it drop the packet */
#define IPV4_OPTION_FRONTEND   158  /* copied into fragments (RFC 791) */
#define IPV6_OPTION_FRONTEND   0x5e /* receivers that do not know it drop the packet (RFC 8200) */
#define IPV6_OPTION_PADN       1
#define DSR_HOPS	       64 /* TTL or hop limit of outer headers */
#define GENEVE_SOURCE_PORT_MIN 49152

struct geneve_header {
	__u8 version_length; /* the low six bits: length of the options, in words */
	__u8 flags;	     /* 0x40: there are critical options */
	__be16 protocol;     /* inner ethertype */
	__u8 network[3];
	__u8 reserved;
};

struct geneve_option {
	__be16 class;
	__u8 type;
	__u8 length; /* the low five bits: length of the data, in words */
	__be16 port; /* of the backend */
	__be16 zero;
};

/* The address of the backend, of 4 or 16 bytes, follows struct geneve_option. */
struct geneve_v4 {
	struct geneve_header header;
	struct geneve_option option;
	__be32 backend;
};

struct geneve_v6 {
	struct geneve_header header;
	struct geneve_option option;
	struct address backend;
};

struct option_v4 {
	__u8 type;
	__u8 length; /* 8 */
	__be16 port; /* of the frontend */
	__be32 frontend;
};

struct option_v6 {
	__u8 next_header;
	__u8 header_length; /* 2: in units of 8 octets, without the first 8 */
	__u8 type;
	__u8 length; /* 18 */
	__be16 port; /* of the frontend */
	struct address frontend;
	__u8 pad_type;
	__u8 pad_length; /* 0: these two octets only */
} __attribute__((packed));
