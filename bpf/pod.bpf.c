// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The pod shortcut, at tc ingress of the devices of pods and of those that lead to other nodes. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "packet/ctx_tc.h"
#include "packet/forward_tc.h"
#include "pod/shortcut.h"

/* Keeps types in the BTF for the agent: no variable has them. */
const enum pod_role *unused_pod_role __attribute__((unused));
const enum pod_path *unused_pod_path __attribute__((unused));
const enum pod_record_flag *unused_pod_record_flag __attribute__((unused));

SEC("tc")
int beeline_pod(struct __sk_buff *ctx)
{
	return pod_ingress(ctx);
}

char _license[] SEC("license") = "Dual BSD/GPL";
