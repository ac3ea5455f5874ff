/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What packets look like on their way from a balancer to a backend's node (direct server
 * return; enum dsr). All fields are in network byte order.
 *
 *   IPIP     an IP header before the client's packet, to the backend itself (RFC 2003; of
 *            IPv6: RFC 2473). Nothing else is said: the backend's node finds the port in
 *            its own tables.
 *   Geneve   IP, UDP and Geneve before the client's packet (RFC 8926), to the backend's
 *            node, without Ethernet in between; one option has the backend.
 *   option   the client's packet, to the backend, and what it asked for in its first option:
 *            of IPv4 in an option of the header, of IPv6 in a destination options header
 *            right behind the IPv6 header.
 *
 * An ICMP error about a packet that a backend has sent in the Service's name goes the same way,
 * from whoever reports it: within the outer header as it is, to the VIP; with the option it
 * goes to the backend, and ICMPv6's checksum is that of these ends. The option has the port that
 * the error's quote has.
 *
 * The numbers of Geneve's option and of those of IPv4 and IPv6 are of the ranges for
 * experiments (RFC 8926 section 7, RFC 4727).
 */
#pragma once

#include <linux/types.h>

#include "types.h"

#define GENEVE_PORT	       6081
#define GENEVE_OPTION_CLASS    0xffbe
#define GENEVE_OPTION_BACKEND  0x81 /* critical: who does not know it drops the packet */
#define IPV4_OPTION_FRONTEND   158  /* copied into fragments (RFC 791) */
#define IPV6_OPTION_FRONTEND   0x5e /* who does not know it drops the packet (RFC 8200) */
#define IPV6_OPTION_PADN       1
#define DSR_HOPS	       64 /* of an outer header */
#define GENEVE_SOURCE_PORT_MIN 49152

struct geneve_header {
	__u8 version_length; /* of the options, in words: the low six bits */
	__u8 flags;	     /* 0x40: there are critical options */
	__be16 protocol;     /* of what is inside: an ethertype */
	__u8 network[3];
	__u8 reserved;
};

struct geneve_option {
	__be16 class;
	__u8 type;
	__u8 length; /* of what follows, in words: the low five bits */
	__be16 port; /* of the backend */
	__be16 zero;
};

/* Behind struct geneve_option comes the backend's address, of 4 or of 16 bytes. */
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
	__u8 pad_length; /* 0: these two octets */
} __attribute__((packed));
