// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The edge at XDP as one of several programs of a dispatcher (xdp_dispatcher.bpf.c), in which it
 * replaces a function. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define FIXED_SIZE

#include "packet/ctx_xdp.h"
#include "edge/ingress.h"
#include "migrate/maps.h"

SEC("xdp")
int beeline_edge(struct xdp_md *ctx)
{
	/* tc handles all packets, if necessary by the predecessor's programs. */
	if (migration_phase() != MIGRATION_DONE)
		return XDP_PASS;
	return edge_ingress(ctx);
}

char _license[] SEC("license") = "Dual BSD/GPL";
