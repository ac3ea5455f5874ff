// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The edge, entered from XDP as one of several programs of a dispatcher
 * (xdp_dispatcher.bpf.c): it replaces a function there. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define FIXED_SIZE

#include "lib/packet_xdp.h"
#include "lib/edge.h"

SEC("xdp")
int beeline_edge(struct xdp_md *ctx)
{
	return edge_ingress(ctx);
}

char _license[] SEC("license") = "Dual BSD/GPL";
