/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The ports of fragmented datagrams; next hops to clients. */
#pragma once

#include <linux/types.h>

#include "lb/types.h"

/* Identifies a fragmented datagram. Only its first fragment has the ports (RFC 791, RFC 8200
 * section 4.5). */
struct fragment_key {
	struct address source;
	struct address destination;
	__u32 id;
	__u8 protocol;
	__u8 reserved[3];
};

struct fragment {
	__be16 source_port;
	__be16 destination_port;
	__u32 since; /* seconds, CLOCK_MONOTONIC */
};

/* A device and an IPv4 network. */
struct next_hop_key {
	__u32 prefixlen; /* 32 and the network's */
	__u32 device;
	__be32 address;
};
