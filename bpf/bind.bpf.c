// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Bind protection: a program on the host that binds the port of a NodePort or HostPort would wait
 * for connections that never come, so bind(2) refuses it.
 *
 *   bind4, bind6             a port that the program names
 *   post_bind4, post_bind6   a port that the kernel has chosen
 *
 * The kernel calls neither of them for SCTP, which has its own bind(), nor for listen() without
 * bind(). */
#include <linux/bpf.h>
#include <linux/errno.h>
#include <linux/in.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "lb/frontend.h"
#include "lb/maps.h"
#include "sock/maps.h"
#include "sock/reserved_port.h"

enum { BIND_REFUSE = 0, BIND_PROCEED = 1 };

/* include/net/sock.h */
struct sock_common {
	unsigned char skc_reuse : 4;
	unsigned char skc_reuseport : 1;
	unsigned char skc_ipv6only : 1;
} __attribute__((preserve_access_index));

static __always_inline int bind_refused(void)
{
	COUNT(bind_refused);
	bpf_set_retval(-EADDRINUSE);
	return BIND_REFUSE;
}

static __always_inline int is_ipv6_only(struct bpf_sock *sk, __u32 protocol)
{
	struct sock_common *common = 0;

	if (protocol == IPPROTO_TCP)
		common = (struct sock_common *)bpf_skc_to_tcp6_sock(sk);
	else if (protocol == IPPROTO_UDP)
		common = (struct sock_common *)bpf_skc_to_udp6_sock(sk);
	return common && BPF_CORE_READ_BITFIELD(common, skc_ipv6only);
}

static __always_inline int bind_hook(struct bpf_sock_addr *ctx, const struct destination *d,
				     int ipv6_only)
{
	struct bind_pending *bound;

	if (bpf_get_netns_cookie(ctx) != host_netns_cookie)
		return BIND_PROCEED;
	bound = bpf_sk_storage_get(&bind_pending, ctx->sk, 0,
				   d->port ? 0 : BPF_SK_STORAGE_GET_F_CREATE);
	if (bound) {
		bound->pending = !d->port; /* otherwise left by an earlier bind() that failed */
		bound->ipv6_only = ipv6_only;
	}
	return d->port && bind_takes(d, ctx->protocol, ipv6_only) ? bind_refused() : BIND_PROCEED;
}

/* The bind hook has checked a port that the program names. The kernel does not call this for ports
 * assigned by connect() or by sending: nothing waits for connections there. */
static __always_inline int post_bind_hook(struct bpf_sock *sk, const struct destination *d)
{
	struct bind_pending *bound = bpf_sk_storage_get(&bind_pending, sk, 0, 0);

	if (!bound || !bound->pending)
		return BIND_PROCEED;
	bound->pending = 0;
	return bind_takes(d, sk->protocol, bound->ipv6_only) ? bind_refused() : BIND_PROCEED;
}

SEC("cgroup/bind4")
int beeline_bind4(struct bpf_sock_addr *ctx)
{
	struct destination d;

	address_from_v4(&d.address, ctx->user_ip4);
	d.port = ctx->user_port;
	return bind_hook(ctx, &d, 0);
}

SEC("cgroup/bind6")
int beeline_bind6(struct bpf_sock_addr *ctx)
{
	struct destination d;
	__u32 *words = address_words(&d.address);

	words[0] = ctx->user_ip6[0];
	words[1] = ctx->user_ip6[1];
	words[2] = ctx->user_ip6[2];
	words[3] = ctx->user_ip6[3];
	d.port = ctx->user_port;
	return bind_hook(ctx, &d, is_ipv6_only(ctx->sk, ctx->protocol));
}

SEC("cgroup/post_bind4")
int beeline_post_bind4(struct bpf_sock *sk)
{
	struct destination d;

	address_from_v4(&d.address, sk->src_ip4);
	d.port = bpf_htons(sk->src_port);
	return post_bind_hook(sk, &d);
}

SEC("cgroup/post_bind6")
int beeline_post_bind6(struct bpf_sock *sk)
{
	struct destination d;
	__u32 *words = address_words(&d.address);

	words[0] = sk->src_ip6[0];
	words[1] = sk->src_ip6[1];
	words[2] = sk->src_ip6[2];
	words[3] = sk->src_ip6[3];
	d.port = bpf_htons(sk->src_port);
	return post_bind_hook(sk, &d);
}

char _license[] SEC("license") = "Dual BSD/GPL";
