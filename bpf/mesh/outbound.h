/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* connect(2) and getpeername(2) of an application: its connection goes to the proxy on loopback,
 * and its socket keeps the destination that it asked for. */
#pragma once

#include <linux/bpf.h>
#include <linux/errno.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "mesh/devices.h"
#include "mesh/mptcp.h"
#include "mesh/policy.h"
#include "mesh/proxy.h"
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
static __always_inline void mesh_stays(struct bpf_sock_addr *ctx, const struct mesh_pod *pod)
{
	struct mesh_origin *origin;

	if (ctx->protocol != MESH_TCP || !mesh_is_proxy(pod)) {
		bpf_sk_storage_delete(&mesh_origins, ctx->sk);
		return;
	}
	origin = bpf_sk_storage_get(&mesh_origins, ctx->sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (origin)
		origin->end = MESH_PROXY;
}

/* Replaces a destination by a port of the proxy, and stores it. */
static __always_inline int mesh_redirect(struct bpf_sock_addr *ctx, struct address *a, __be16 *port,
					 __u16 to, __u8 end)
{
	struct mesh_origin *origin =
		bpf_sk_storage_get(&mesh_origins, ctx->sk, 0, BPF_SK_STORAGE_GET_F_CREATE);

	if (!origin) { /* the proxy would not learn where to connect to */
		bpf_set_retval(-ENOMEM);
		return MESH_REFUSE;
	}
	origin->address = *a;
	origin->port = *port;
	origin->end = end;
	mesh_proxy_address(a);
	*port = bpf_htons(to);
	return MESH_PROCEED;
}

/* Refuses what would go to the proxy, but for a reason must not. */
static __always_inline int mesh_refused(const struct mesh_pod *pod, __u64 netns)
{
	if (pod->flags & MESH_PROXY_UNKNOWN)
		MESH_COUNT(unknown);
	else if (!mesh_loops_back(netns))
		return 0;
	bpf_set_retval(-ECONNREFUSED);
	return 1;
}

/* Returns MESH_PROCEED and `*port` 0 if the destination stays. Else `a` and `port`, in network byte
 * order, are where to connect to. */
static __always_inline int mesh_connect(struct bpf_sock_addr *ctx, struct address *a, __be16 *port)
{
	__u64 netns = bpf_get_netns_cookie(ctx);
	int excluded, dns, taken, mptcp;
	struct mesh_pod pod;

	mesh_current_pod(&pod, netns);
	excluded = mesh_leaves_excluded(ctx, &pod, a);
	dns = !excluded && mesh_takes_dns(&pod, a, bpf_ntohs(*port));
	taken = dns || (!excluded && ctx->protocol == MESH_TCP &&
			mesh_takes_outbound(&pod, a, bpf_ntohs(*port)));
	mptcp = mesh_is_mptcp(ctx);
	if (taken && (!mptcp || pod.flags & MESH_PROXY_UNKNOWN) && mesh_refused(&pod, netns))
		return MESH_REFUSE;
	if (taken && !mptcp) {
		if (dns)
			MESH_COUNT(dns);
		else
			MESH_COUNT(outbound);
		return mesh_redirect(ctx, a, port, dns ? mesh_dns_port : mesh_outbound_port,
				     dns ? MESH_QUERY : MESH_CLIENT);
	}
	if (!mptcp)
		mesh_stays(ctx, &pod);
	*port = 0;
	return MESH_PROCEED;
}

/* The same for a datagram of a socket that is not connected. */
static __always_inline int mesh_send(struct bpf_sock_addr *ctx, struct address *a, __be16 *port)
{
	__u64 netns = bpf_get_netns_cookie(ctx);
	struct mesh_pod pod;

	if (*port == bpf_htons(MESH_DNS_PORT) && mesh_dns_port) {
		mesh_current_pod(&pod, netns);
		if (mesh_takes_dns(&pod, a, MESH_DNS_PORT) && !mesh_leaves_excluded(ctx, &pod, a)) {
			if (mesh_refused(&pod, netns))
				return MESH_REFUSE;
			MESH_COUNT(dns);
			return mesh_redirect(ctx, a, port, mesh_dns_port, MESH_QUERY);
		}
	}
	*port = 0;
	return MESH_PROCEED;
}

/* Returns the destination that the application asked for; 0 if `a` and `port` are it. */
static __always_inline struct mesh_origin *mesh_peer(struct bpf_sock_addr *ctx,
						     const struct address *a, __be16 port)
{
	struct mesh_origin *origin;

	if (!address_is_loopback(a))
		return 0;
	if (port != bpf_htons(mesh_outbound_port) && port != bpf_htons(mesh_dns_port))
		return 0;
	origin = bpf_sk_storage_get(&mesh_origins, ctx->sk, 0, 0);
	if (!origin)
		return 0;
	return origin->end == MESH_CLIENT || origin->end == MESH_QUERY ? origin : 0;
}
