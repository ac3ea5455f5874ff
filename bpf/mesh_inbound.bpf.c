// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The sidecar shortcut in the network namespace of a pod: connections from other hosts, and those
 * of the proxy to the pod's own address, go to the proxy's listener, whatever port they are for.
 * The accepted socket keeps both addresses of the connection. There is one instance for each
 * namespace, because the program cannot ask in which one it runs. */
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "mesh/devices.h"
#include "mesh/policy.h"

/* The cookie of the namespace. Set by the loader. */
const volatile __u64 mesh_netns = 0;

#define MESH_LOOPBACK_INDEX 1 /* LOOPBACK_IFINDEX: the same in every namespace */

static __always_inline int mesh_assign(struct bpf_sk_lookup *ctx,
				       const struct mesh_listener_key *key)
{
	struct bpf_sock *sk = bpf_map_lookup_elem(&mesh_listeners, key);
	long failed;

	if (!sk)
		return 0;
	failed = bpf_sk_assign(ctx, sk, 0); /* another family, or no longer listening */
	bpf_sk_release(sk);
	return !failed;
}

/* Volatile, because the verifier requires loads at fixed offsets of the context, outside branches.
 */
static __always_inline void mesh_lookup_addresses(const volatile struct bpf_sk_lookup *ctx,
						  struct address *remote, struct address *local)
{
	__u32 remote6[4] = {ctx->remote_ip6[0], ctx->remote_ip6[1], ctx->remote_ip6[2],
			    ctx->remote_ip6[3]};
	__u32 local6[4] = {ctx->local_ip6[0], ctx->local_ip6[1], ctx->local_ip6[2],
			   ctx->local_ip6[3]};
	__u32 family = ctx->family, remote4 = ctx->remote_ip4, local4 = ctx->local_ip4;

	address_of_socket(remote, family, remote4, remote6);
	address_of_socket(local, family, local4, local6);
}

/* HTTP tunnels between proxies, which Istio's rules leave alone. */
#define MESH_TUNNEL_PORT 15008

/* Returns whether the proxy calls its own pod. What its outbound side has encrypted is for its
 * inbound side. */
static __always_inline int mesh_calls_itself(const volatile struct bpf_sk_lookup *ctx,
					     const struct address *remote,
					     const struct address *local)
{
	struct mesh_tuple client = {
		.netns = mesh_netns,
		.local = *remote,
		.remote = *local,
		.local_port = bpf_ntohs(ctx->remote_port),
		.remote_port = ctx->local_port,
	};
	const struct mesh_handshake *handshake;

	if (client.remote_port == MESH_TUNNEL_PORT)
		return 0;
	handshake = bpf_map_lookup_elem(&mesh_handshakes, &client);
	return handshake && handshake->origin.end == MESH_PROXY;
}

static __always_inline int mesh_give(struct bpf_sk_lookup *ctx, struct mesh_listener_key *key)
{
	for (__u32 i = 0; i < MESH_LISTENERS; i++) {
		key->place = i; /* Linux 6.1 loses track of what helpers can read */
		if (mesh_assign(ctx, key))
			return 1;
	}
	return 0;
}

/* Returns whether a connection is for the proxy; then `key` has for which of its listeners. */
static __always_inline int mesh_for_proxy(struct bpf_sk_lookup *ctx, struct mesh_listener_key *key)
{
	struct address remote, local;
	struct mesh_pod pod;
	__u32 rule;

	mesh_lookup_addresses(ctx, &remote, &local);
	mesh_pod_of(&pod, mesh_netns);
	/* What the pod sends to its own address seems to arrive by the device that has the address.
	 */
	if (mesh_is_own(&remote, &local))
		return !mesh_excludes_device(&pod, MESH_LOOPBACK_INDEX) &&
		       mesh_calls_itself(ctx, &remote, &local);
	rule = mesh_device_rule(&pod, ctx->ingress_ifindex);
	if (rule == MESH_INCLUDE && !mesh_is_local_source(&remote)) {
		key->outbound = 1;
		return mesh_reroutes(&pod, &local);
	}
	return rule != MESH_EXCLUDE && mesh_takes_inbound(&pod, &remote, &local, ctx->local_port);
}

SEC("sk_lookup")
int beeline_mesh_inbound(struct bpf_sk_lookup *ctx)
{
	struct mesh_listener_key key = {.netns = mesh_netns};

	if (ctx->protocol != MESH_TCP || ctx->ingress_ifindex == MESH_LOOPBACK_INDEX ||
	    !mesh_for_proxy(ctx, &key))
		return SK_PASS;
	if (mesh_give(ctx, &key)) {
		if (key.outbound)
			MESH_COUNT(outbound);
		else
			MESH_COUNT(inbound);
		return SK_PASS;
	}
	/* The application must not get what the proxy should have checked. */
	MESH_COUNT(refused);
	return SK_DROP;
}

char _license[] SEC("license") = "Dual BSD/GPL";
