// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The sidecar shortcut in the network namespace of a pod: connections from other hosts go to the
 * proxy's listener, whatever port they are for. The accepted socket keeps both addresses of the
 * connection. There is one instance for each namespace, because the program cannot ask in which one
 * it runs. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

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

SEC("sk_lookup")
int beeline_mesh_inbound(struct bpf_sk_lookup *ctx)
{
	struct mesh_listener_key key = {.netns = mesh_netns};
	struct address remote, local;
	struct mesh_pod pod;

	/* On loopback the proxy connects to the application, and the pod to itself. */
	if (ctx->protocol != MESH_TCP || ctx->ingress_ifindex == MESH_LOOPBACK_INDEX)
		return SK_PASS;
	mesh_lookup_addresses(ctx, &remote, &local);
	mesh_pod_of(&pod, mesh_netns);
	if (!mesh_takes_inbound(&pod, &remote, &local, ctx->local_port))
		return SK_PASS;
	for (__u32 i = 0; i < MESH_LISTENERS; i++) {
		key.place = i; /* Linux 6.1 loses track of what helpers can read */
		if (mesh_assign(ctx, &key)) {
			MESH_COUNT(inbound);
			return SK_PASS;
		}
	}
	/* The application must not get what the proxy should have checked. */
	MESH_COUNT(refused);
	return SK_DROP;
}

char _license[] SEC("license") = "Dual BSD/GPL";
