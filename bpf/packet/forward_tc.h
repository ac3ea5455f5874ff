/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* packet_forward (packet/packet.h) for tc. Apart from packet/ctx_tc.h because it uses the edge's
 * table of devices. */
#pragma once

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_helpers.h>

#include "packet/access.h"
#include "packet/ctx_tc.h"
#include "packet/device.h"

/* Sends a packet to the next hop of its route. With a route that has just been looked up it passes
 * through the kernel's neighbour table, which keeps the neighbour entry in use and probes it; with
 * a cached one it is sent directly. Both use the next hop of the route: the kernel's own lookup for
 * a redirected packet could choose another one if there are several, or if routing rules match the
 * source. To a device without MAC addresses, and by a route with an outer header (without a family,
 * route/fib.h), the kernel looks up the route again and leaves it with the packet: a tunnel to
 * several nodes (IPIP, VXLAN) takes the outer destination from it. */
static __always_inline enum action packet_forward(struct __sk_buff *ctx,
						  const struct bpf_fib_lookup *fib, int fib_cached)
{
	struct bpf_redir_neigh next = {};
	struct ethhdr *eth;

	packet_untag(ctx);
	if (link_header_add(ctx))
		return ACTION_DROP;
	if (!fib_cached && (fib->family == AF_UNSPEC || !is_ethernet(fib->ifindex)))
		return bpf_redirect_neigh(fib->ifindex, 0, 0, 0);
	if (!fib_cached) {
		next.nh_family = fib->family;
		__builtin_memcpy(next.ipv6_nh, fib->ipv6_dst, sizeof(next.ipv6_nh));
		return bpf_redirect_neigh(fib->ifindex, &next, sizeof(next), 0);
	}
	eth = linear_bytes(ctx, 0, sizeof(*eth));
	if (!eth)
		return ACTION_DROP;
	mac_copy(eth->h_dest, fib->dmac);
	mac_copy(eth->h_source, fib->smac);
	if (!LINK_HEADER)
		eth->h_proto = ctx->protocol;
	return bpf_redirect(fib->ifindex, 0);
}
