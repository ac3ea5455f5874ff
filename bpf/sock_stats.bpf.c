// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Statistics of connections to Services: the kernel calls this program at the SYN of each TCP
 * connection and at the end of its handshake, and, for connections that are counted, whenever the
 * state changes. It never writes `reply`, which other programs of the cgroup may have set. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "sock/stats.h"

/* Keeps the type in the BTF for the agent: no variable has it. */
const enum rtt_histogram *unused_rtt_histogram __attribute__((unused));

SEC("sockops")
int beeline_sock_stats(struct bpf_sock_ops *ctx)
{
	struct bpf_sock *sk;

	switch (ctx->op) {
	case BPF_SOCK_OPS_TCP_CONNECT_CB:
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
		break;
	case BPF_SOCK_OPS_STATE_CB:
		if (ctx->args[1] == TCP_STATE_CLOSE)
			break;
		return 1;
	default:
		return 1;
	}
	sk = ctx->sk;
	if (!sk)
		return 1;
	if (ctx->op == BPF_SOCK_OPS_TCP_CONNECT_CB)
		stats_start(ctx, sk);
	else if (ctx->op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB)
		stats_handshake(ctx, sk);
	else
		stats_end(sk, ctx->args[0]);
	return 1;
}

char _license[] SEC("license") = "Dual BSD/GPL";
