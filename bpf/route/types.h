/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Layout of the tables about routes. The agent fills them. */
#pragma once

#include <linux/types.h>

#include "lb/types.h"

/* A network, and the next hop by which the kernel has found a route to it. */
struct route_key {
	__u32 prefixlen;
	__u32 is_v6;
	__u32 device;
	__u32 metric;
	struct address next_hop; /* 0: none, the network is at the device */
	struct address destination;
};

#define ROUTE_KEY_BITS (8 * (sizeof(struct route_key) - sizeof(__u32)))

/* A route by a device to which the kernel gives the outer header's addresses with each packet. */
struct route_encap {
	__u32 device; /* 0: the programs cannot use the route */
	__u32 mtu;    /* of the route; 0: it has none */
};

enum routing_flag {
	/* Routing rules select by the source, by protocol or ports, by the traffic class, or by a
	 * mark other than 0; also routes by the source and the traffic class. */
	ROUTED_BY_SOURCE = 1,
	ROUTED_BY_PORTS = 2,
	ROUTED_BY_TOS = 4,
	ROUTED_BY_MARK = 8,
	/* `route_mtus` has not room for all: the smallest MTU counts for all routes. */
	ROUTE_MTUS_MISSING = 32,
	/* The tables are filled, and what the node forwards over IPv4 does not obey path MTUs that
	 * sockets have learned (net.ipv4.ip_forward_use_pmtu), which the kernel's lookup does. */
	ROUTE_IGNORES_PMTU = 16,
};

/* What the kernel's routing has to be asked beside addresses, and whether routes have an MTU of
 * their own. */
struct routing {
	/* The smallest MTU of a route that is below its device's; 0: there is none. */
	__u32 least_mtu4;
	__u32 least_mtu6;
	__u32 flags; /* enum routing_flag */
};
