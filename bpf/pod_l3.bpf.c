// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The pod shortcut at tc ingress of devices that lead to other nodes and have no MAC addresses,
 * like edge_l3.bpf.c. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define L3_DEVICE

#include "packet/ctx_tc.h"
#include "packet/forward_tc.h"
#include "pod/shortcut.h"

SEC("tc")
int beeline_pod_l3(struct __sk_buff *ctx)
{
	return pod_ingress(ctx);
}

char _license[] SEC("license") = "Dual BSD/GPL";
