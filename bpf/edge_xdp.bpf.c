// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The edge at XDP, before the kernel allocates an skb. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "packet/ctx_xdp.h"
#include "edge/ingress.h"
#include "migrate/maps.h"

SEC("xdp.frags")
int beeline_edge_xdp(struct xdp_md *ctx)
{
	/* tc handles all packets, if necessary by the predecessor's programs. */
	if (migration_phase() != MIGRATION_DONE)
		return XDP_PASS;
	return edge_ingress(ctx);
}

char _license[] SEC("license") = "Dual BSD/GPL";
