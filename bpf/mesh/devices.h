/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Devices of a pod's network namespace. By some its connections do not go to the proxy, neither
 * those that leave nor those that arrive, as with the flag -c of istio-iptables. What arrives by
 * others is from a virtual machine, and outbound, as with the flag -k.
 *
 * A program at connect() runs before the kernel looks up the route, and has no helper for that. The
 * agent asks the kernel, and writes by which device what leaves to which network to `mesh_routes`.
 */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "lb/address.h"
#include "mesh/maps.h"
#include "mesh/policy.h"

/* Returns an enum mesh_rule: MESH_EXCLUDE, or MESH_INCLUDE for devices of virtual machines, whose
 * connections are outbound. 0: there is none. */
static __always_inline __u32 mesh_device_rule(const struct mesh_pod *pod, __u32 index)
{
	struct mesh_device key = {.cgroup = pod->cgroup, .index = index};
	const __u32 *rule;

	if (!(pod->flags & MESH_HAS_DEVICES))
		return 0;
	rule = bpf_map_lookup_elem(&mesh_devices, &key);
	return rule ? *rule : 0;
}

static __always_inline int mesh_excludes_device(const struct mesh_pod *pod, __u32 index)
{
	return mesh_device_rule(pod, index) == MESH_EXCLUDE;
}

/* What a program of type sock_addr gets, and what connect() and sendto() were given. Linux:
 * include/linux/filter.h, include/uapi/linux/in6.h */
struct bpf_sock_addr_kern {
	void *uaddr;
} __attribute__((preserve_access_index));

struct sockaddr_in6___scope {
	__u32 sin6_scope_id;
} __attribute__((preserve_access_index));

/* Returns the index of the device to which a link-local IPv6 destination belongs; 0: none. What is
 * read of an address without this field is of no importance: the kernel refuses that. */
static __always_inline __u32 mesh_scope(const struct bpf_sock_addr *ctx, const struct address *a)
{
	const struct bpf_sock_addr_kern *kernel = (const void *)ctx;
	const struct sockaddr_in6___scope *given;

	if ((address_words_const(a)[0] & bpf_htonl(0xffc00000)) != bpf_htonl(0xfe800000))
		return 0;
	given = BPF_CORE_READ(kernel, uaddr);
	return BPF_CORE_READ(given, sin6_scope_id);
}

/* The address to which a socket is bound; zero if it is not. Volatile, because the verifier
 * requires loads at fixed offsets, outside branches. */
static __always_inline void mesh_bound_source(const volatile struct bpf_sock *sk,
					      struct address *source)
{
	__u32 v6[4] = {sk->src_ip6[0], sk->src_ip6[1], sk->src_ip6[2], sk->src_ip6[3]};
	__u32 family = sk->family, v4 = sk->src_ip4;

	if (family == AF_INET && !v4)
		return;
	address_of_socket(source, family, v4, v6);
}

/* Returns whether what a socket of a pod sends to an address leaves by an excluded device. */
static __always_inline int mesh_leaves_excluded(struct bpf_sock_addr *ctx,
						const struct mesh_pod *pod, const struct address *a)
{
	struct mesh_route key = {
		.prefixlen = 64 + 128 + 128,
		.cgroup = {pod->cgroup, pod->cgroup >> 32},
		.destination = *a,
	};
	const __u32 *rule;
	__u32 device;

	if (!(pod->flags & MESH_HAS_DEVICES) || !ctx->sk)
		return 0;
	device = ctx->sk->bound_dev_if;
	if (!device)
		device = mesh_scope(ctx, a);
	if (device)
		return mesh_excludes_device(pod, device);
	if (pod->flags & MESH_ROUTES_BY_SOURCE)
		mesh_bound_source(ctx->sk, &key.source);
	rule = bpf_map_lookup_elem(&mesh_routes, &key);
	return rule && *rule == MESH_EXCLUDE;
}

/* Linux: include/net/sock.h */
struct sock___received {
	int sk_rx_dst_ifindex;
} __attribute__((preserve_access_index));

/* Returns the rule of the device by which the connection of a socket has arrived that accept() will
 * return. */
static __always_inline __u32 mesh_arrival_rule(struct bpf_sock *sk, const struct mesh_pod *pod)
{
	const struct sock___received *received = (const void *)bpf_skc_to_tcp_sock(sk);

	if (!received)
		return 0;
	return mesh_device_rule(pod, BPF_CORE_READ(received, sk_rx_dst_ifindex));
}

/* Returns whether what a virtual machine sends to an address goes to the proxy. Istio's rules for
 * such devices know neither ports nor excluded networks. */
static __always_inline int mesh_reroutes(const struct mesh_pod *pod, const struct address *a)
{
	return pod->flags & MESH_ALL_OUTBOUND || mesh_network_rule(pod, a) == MESH_INCLUDE;
}
