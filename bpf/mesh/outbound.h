/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* connect(2) and getpeername(2) of an application: its connection goes to the proxy on loopback,
 * and its socket keeps the destination that it asked for. */
#pragma once

#include <linux/bpf.h>
#include <linux/errno.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "mesh/policy.h"
#include "mesh/sockmap.h"

enum { MESH_REFUSE = 0, MESH_PROCEED = 1 };

/* Sets the proxy's address in the family of `a`. */
static __always_inline void mesh_proxy_address(struct address *a)
{
	__u32 *words = address_words(a);

	if (address_is_v4(a)) {
		address_from_v4(a, bpf_htonl(0x7f000001));
		return;
	}
	words[0] = 0;
	words[1] = 0;
	words[2] = 0;
	words[3] = bpf_htonl(1);
}

/* A destination stays as it is. The socket may have been connected before, elsewhere. */
static __always_inline void mesh_stays(struct bpf_sock_addr *ctx)
{
	struct mesh_origin *origin;

	if (!mesh_sockmap || !mesh_is_proxy()) {
		bpf_sk_storage_delete(&mesh_origins, ctx->sk);
		return;
	}
	origin = bpf_sk_storage_get(&mesh_origins, ctx->sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (origin)
		origin->end = MESH_PROXY;
}

/* Returns MESH_PROCEED and `*port` 0 if the destination stays. Else `a` and `port`, in network byte
 * order, are where to connect to. */
static __always_inline int mesh_connect(struct bpf_sock_addr *ctx, struct address *a, __be16 *port)
{
	struct mesh_origin *origin;

	if (!mesh_takes_outbound(a, bpf_ntohs(*port))) {
		mesh_stays(ctx);
		*port = 0;
		return MESH_PROCEED;
	}
	origin = bpf_sk_storage_get(&mesh_origins, ctx->sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!origin) { /* the proxy would not learn where to connect to */
		bpf_set_retval(-ENOMEM);
		return MESH_REFUSE;
	}
	origin->address = *a;
	origin->port = *port;
	origin->end = MESH_CLIENT;
	mesh_proxy_address(a);
	*port = bpf_htons(mesh_outbound_port);
	MESH_COUNT(outbound);
	return MESH_PROCEED;
}

/* Returns the destination that the application asked for; 0 if `a` and `port` are it. */
static __always_inline struct mesh_origin *mesh_peer(struct bpf_sock_addr *ctx,
						     const struct address *a, __be16 port)
{
	struct mesh_origin *origin;

	if (port != bpf_htons(mesh_outbound_port) || !address_is_loopback(a))
		return 0;
	origin = bpf_sk_storage_get(&mesh_origins, ctx->sk, 0, 0);
	return origin && origin->end == MESH_CLIENT ? origin : 0;
}
