// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The pod shortcut at the peer hook of netkit devices (Linux 6.7): in the context of the pod that
 * sends, before the packet is queued for the node. What it passes comes to pod.bpf.c at ingress of
 * the same device, which counts it. A separate object: older kernels cannot attach it, and which
 * helper delivers a packet stays a constant. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define NETKIT_PEER

#include "packet/ctx_tc.h"
#include "packet/forward_tc.h"
#include "pod/shortcut.h"

SEC("tc")
int beeline_pod_netkit(struct __sk_buff *ctx)
{
	return pod_ingress(ctx);
}

char _license[] SEC("license") = "Dual BSD/GPL";
