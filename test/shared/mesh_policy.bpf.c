// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// clang-format off
//go:build ignore
// clang-format on

/* Runs the policy of the sidecar shortcut on one connection: what goes to the proxy. A program of
 * raw tracepoints runs as the process of the test, with its user and group. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "mesh/policy.h"

struct mesh_question {
	__u64 netns; /* cookie, by which the pod is known */
	struct address remote;
	struct address local;
	__u16 port; /* host byte order */
	__u16 reserved[3];

	__u32 outbound; /* a connect() to `remote` goes to the proxy */
	__u32 dns;	/* a question for `remote` does */
	__u32 inbound;	/* a connection from `remote` to `local` does */
	__u32 done;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct mesh_question);
} mesh_questions SEC(".maps");

SEC("raw_tp")
int beeline_mesh_policy(void *ctx)
{
	__u32 zero = 0;
	struct mesh_question *q = bpf_map_lookup_elem(&mesh_questions, &zero);
	struct mesh_pod pod = {};

	if (!q)
		return 0;
	mesh_pod_of(&pod, q->netns);
	q->outbound = mesh_takes_outbound(&pod, &q->remote, q->port);
	q->dns = mesh_takes_dns(&pod, &q->remote, q->port);
	q->inbound = mesh_takes_inbound(&pod, &q->remote, &q->local, q->port);
	q->done = 1;
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
