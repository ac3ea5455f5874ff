// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The sidecar shortcut at a device of a pod's network namespace behind which a virtual machine is,
 * at tc ingress: the machine's TCP connections go to the proxy's listener for connections of
 * applications, wherever they are to, as with the flag -k of istio-iptables.
 *
 * Their packets get a mark, by which a routing rule of the agent delivers them to this namespace.
 * Then beeline_mesh_inbound gives the SYN to the listener. The accepted socket has the machine's
 * address and the destination. What the machine sends on other connections, which others have
 * opened to it, is routed as before. There is one instance for each namespace. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "mesh/devices.h"

/* The cookie of the namespace. Set by the loader. */
const volatile __u64 mesh_netns = 0;

/* The bit of the mark by which the agent's rule selects packets. */
enum mesh_mark { MESH_MARK = 0x2000000 };
const enum mesh_mark *unused_mesh_mark __attribute__((unused));

/* Linux: include/net/tcp_states.h */
enum { MESH_LISTEN = 10 };

/* A segment of a virtual machine. */
struct mesh_segment {
	union {
		struct iphdr v4;
		struct ipv6hdr v6;
	} ip;
	struct tcphdr tcp;
	struct address to;
	struct bpf_sock_tuple tuple;
	__u32 tuple_size;
};

static __always_inline int mesh_load(struct __sk_buff *ctx, __u32 offset, void *to, __u32 size)
{
	return bpf_skb_load_bytes_relative(ctx, offset, to, size, BPF_HDR_START_NET);
}

static __always_inline int mesh_segment4(struct __sk_buff *ctx, struct mesh_segment *s)
{
	struct iphdr *ip = &s->ip.v4;

	if (mesh_load(ctx, 0, ip, sizeof(*ip)) || ip->protocol != MESH_TCP ||
	    ip->frag_off & bpf_htons(0x3fff) ||
	    mesh_load(ctx, 4 * ip->ihl, &s->tcp, sizeof(s->tcp)))
		return 0;
	address_from_v4(&s->to, ip->daddr);
	s->tuple.ipv4.saddr = ip->saddr;
	s->tuple.ipv4.daddr = ip->daddr;
	s->tuple.ipv4.sport = s->tcp.source;
	s->tuple.ipv4.dport = s->tcp.dest;
	s->tuple_size = sizeof(s->tuple.ipv4);
	return 1;
}

#define MESH_EXTENSIONS 4

static __always_inline int mesh_segment6(struct __sk_buff *ctx, struct mesh_segment *s)
{
	__u32 offset = sizeof(s->ip.v6);
	__u8 next, extension[2];

	if (mesh_load(ctx, 0, &s->ip.v6, sizeof(s->ip.v6)))
		return 0;
	next = s->ip.v6.nexthdr;
	for (int i = 0; i < MESH_EXTENSIONS; i++) {
		/* hop-by-hop options, routing, destination options */
		if (next != 0 && next != 43 && next != 60)
			break;
		if (mesh_load(ctx, offset, extension, sizeof(extension)))
			return 0;
		next = extension[0];
		offset += 8 + 8 * extension[1];
	}
	if (next != MESH_TCP || mesh_load(ctx, offset, &s->tcp, sizeof(s->tcp)))
		return 0;
	__builtin_memcpy(&s->to, &s->ip.v6.daddr, sizeof(s->to));
	__builtin_memcpy(s->tuple.ipv6.saddr, &s->ip.v6.saddr, sizeof(s->tuple.ipv6.saddr));
	__builtin_memcpy(s->tuple.ipv6.daddr, &s->ip.v6.daddr, sizeof(s->tuple.ipv6.daddr));
	s->tuple.ipv6.sport = s->tcp.source;
	s->tuple.ipv6.dport = s->tcp.dest;
	s->tuple_size = sizeof(s->tuple.ipv6);
	return 1;
}

/* Returns whether a segment that is not a SYN is of a connection to the proxy. A listener is found
 * for any segment; it has the connection if its SYN cookie is in the segment. */
static __always_inline int mesh_is_connected(struct __sk_buff *ctx, struct mesh_segment *s)
{
	struct bpf_sock *sk = bpf_skc_lookup_tcp(ctx, &s->tuple, s->tuple_size, -1, 0);
	int connected;

	if (!sk)
		return 0;
	connected = sk->state != MESH_LISTEN ||
		    !bpf_tcp_check_syncookie(sk, &s->ip, sizeof(s->ip), &s->tcp, sizeof(s->tcp));
	bpf_sk_release(sk);
	return connected;
}

SEC("tc")
int beeline_mesh_reroute(struct __sk_buff *ctx)
{
	struct mesh_segment s = {};
	struct mesh_pod pod;
	int of_proxy;

	if (ctx->protocol == bpf_htons(ETH_P_IP)) {
		if (!mesh_segment4(ctx, &s))
			return TC_ACT_UNSPEC;
	} else if (ctx->protocol == bpf_htons(ETH_P_IPV6)) {
		if (!mesh_segment6(ctx, &s))
			return TC_ACT_UNSPEC;
	} else {
		return TC_ACT_UNSPEC;
	}
	if (s.tcp.syn && !s.tcp.ack) {
		mesh_pod_of(&pod, mesh_netns);
		of_proxy = mesh_device_rule(&pod, ctx->ifindex) == MESH_INCLUDE &&
			   mesh_reroutes(&pod, &s.to);
	} else {
		of_proxy = mesh_is_connected(ctx, &s);
	}
	if (of_proxy)
		ctx->mark |= MESH_MARK;
	return TC_ACT_UNSPEC;
}

char _license[] SEC("license") = "Dual BSD/GPL";
