// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The edge, entered from XDP: before the kernel has made anything of a packet. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "lib/packet_xdp.h"
#include "lib/edge.h"

SEC("xdp.frags")
int beeline_edge_xdp(struct xdp_md *ctx)
{
	return edge_ingress(ctx);
}

char _license[] SEC("license") = "Dual BSD/GPL";
