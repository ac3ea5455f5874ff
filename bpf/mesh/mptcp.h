/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* MPTCP. Connections of applications by MPTCP are left alone. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "mesh/kernel.h"
#include "mesh/policy.h"

/* Linux: include/uapi/asm-generic/errno.h */
enum { MESH_EPROTONOSUPPORT = 93 };

/* Returns whether a socket is MPTCP's: nothing else is on top of TCP before it is connected. */
static __always_inline int mesh_is_mptcp(struct bpf_sock_addr *ctx)
{
	const struct tcp_sock *tcp = ctx->sk ? bpf_skc_to_tcp_sock(ctx->sk) : 0;

	return tcp && tcp->inet_conn.icsk_ulp_ops;
}

/* A socket is bound. Returns whether it may be. The kernel lets no listener of MPTCP be chosen for
 * connections from other hosts, so the proxy gets none at its inbound port, as under a kernel
 * without MPTCP. Programs that ask for one unless they are told otherwise, as Go's, then listen by
 * TCP. */
static __always_inline int mesh_may_bind(struct bpf_sock_addr *ctx)
{
	struct mesh_pod pod;

	if (ctx->user_port != bpf_htons(mesh_inbound_port) || !mesh_is_mptcp(ctx))
		return 1;
	mesh_current_pod(&pod, bpf_get_netns_cookie(ctx));
	if (!mesh_is_proxy(&pod))
		return 1;
	bpf_set_retval(-MESH_EPROTONOSUPPORT);
	return 0;
}
