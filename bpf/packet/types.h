/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Packets and devices, shared by the programs and the agent. lb/types.h describes how addresses,
 * ports and numbers are represented. */
#pragma once

#include <linux/types.h>

#include "lb/types.h"

/* The addresses and ports of a packet, in the packet's byte order. Aligned because it is hashed in
 * 64-bit words. */
struct tuple {
	struct address source;
	struct address destination;
	__be16 source_port;
	__be16 destination_port;
	__u8 protocol;
	__u8 reserved[3];
} __attribute__((aligned(8)));

/* A device of the node with clients, other nodes or pods of this node behind it. */
/* How the stack validates the source of IPv4 packets that arrive by a device. */
enum source_validation {
	/* The larger of net.ipv4.conf.all.rp_filter and the device's. None of both: 0. */
	SOURCES_STRICT = 1,
	SOURCES_LOOSE = 2,
	/* The device is one of several next hops of a route (`next_hops`). */
	SOURCES_MULTIPATH = 4,
	/* There is a default route, so an address to which none leads is the node's own. */
	SOURCES_ALL_ROUTED = 8,
};

struct edge_device {
	struct address source4; /* source of SNAT; unspecified: none */
	struct address source6;
	struct address outer4; /* source of outer headers (DSR): the address by which other nodes
				  know this node, on whatever device the packet leaves */
	struct address outer6;
	__u8 mac[6]; /* destination MAC of frames for the node; 0: the device is not Ethernet */
	__u8 pods;   /* 1: pods of this node are behind it; their packets to other nodes are handled
			at egress */
	__u8 sources; /* enum source_validation */
};
