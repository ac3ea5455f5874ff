/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The ports of NodePorts and HostPorts, which bind(2) refuses on the host. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "lb/address.h"
#include "lb/frontend.h"
#include "lb/maps.h"
#include "lb/types.h"
#include "sock/maps.h"
#include "sock/types.h"

static __always_inline int port_reserved(__be16 port, __u8 protocol, __u8 ip_version)
{
	struct reserved_port_key key = {
		.port = port, .protocol = protocol, .ip_version = ip_version};

	return bpf_map_lookup_elem(&reserved_ports, &key) != 0;
}

/* Returns whether this node serves an address and port as NodePort or HostPort. */
static __always_inline int address_served(const struct destination *d, __u8 protocol)
{
	struct frontend *frontend = frontend_of(d, protocol);

	return frontend &&
	       (frontend->kind == FRONTEND_NODE_PORT || frontend->kind == FRONTEND_HOST_PORT);
}

/* Returns whether a bind to an address would take a served port. The wildcard address takes it on
 * every address. */
static __always_inline int bind_takes(const struct destination *d, __u8 protocol, int ipv6_only)
{
	if (address_is_v4(&d->address)) {
		if (!port_reserved(d->port, protocol, 4))
			return 0;
	} else if (!port_reserved(d->port, protocol, 6) &&
		   (ipv6_only || !port_reserved(d->port, protocol, 4))) {
		return 0;
	}
	return address_is_unspecified(&d->address) || address_served(d, protocol);
}
