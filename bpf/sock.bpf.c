// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The socket shortcut: a Service address becomes a backend's when a program
 * connects, once, and no packet is ever translated.
 *
 *   connect4, connect6           look up, decide, choose, rewrite
 *   getpeername4, getpeername6   answer the address that was asked for
 *
 * An AF_INET6 socket that connects to ::ffff:a.b.c.d comes through connect6
 * and needs no care of its own: tables hold IPv4 in that form.
 *
 * Errors are those that connect(2) documents, since the kernel's own clients
 * (NFS, CIFS) come through here too.
 */
#include <linux/bpf.h>
#include <linux/errno.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "lib/select.h"
#include "lib/tables.h"

/* SO_NETNS_COOKIE of the host's network namespace, set by the loader. */
const volatile __u64 host_netns_cookie = 0;

enum { HOOK_REFUSE = 0, HOOK_PROCEED = 1 };

/* Where a socket call goes, in the form of the tables. */
struct destination {
	struct address address;
	__be16 port;
};

static __always_inline void destination_read4(const struct bpf_sock_addr *ctx,
					      struct destination *d)
{
	address_from_v4(&d->address, ctx->user_ip4);
	d->port = ctx->user_port;
}

static __always_inline void destination_write4(struct bpf_sock_addr *ctx,
					       const struct destination *d)
{
	ctx->user_ip4 = address_to_v4(&d->address);
	ctx->user_port = d->port;
}

static __always_inline void destination_read6(const struct bpf_sock_addr *ctx,
					      struct destination *d)
{
	__u32 *words = address_words(&d->address);

	words[0] = ctx->user_ip6[0];
	words[1] = ctx->user_ip6[1];
	words[2] = ctx->user_ip6[2];
	words[3] = ctx->user_ip6[3];
	d->port = ctx->user_port;
}

static __always_inline void destination_write6(struct bpf_sock_addr *ctx,
					       const struct destination *d)
{
	const __u32 *words = address_words_const(&d->address);

	ctx->user_ip6[0] = words[0];
	ctx->user_ip6[1] = words[1];
	ctx->user_ip6[2] = words[2];
	ctx->user_ip6[3] = words[3];
	ctx->user_port = d->port;
}

/* The frontend for a destination, or none. 127.0.0.0/8 is one address to what is
 * served on all of it: the tables hold 127.0.0.1. A hostPort can be on another
 * address of it alone. */
static __always_inline struct frontend *frontend_of(const struct destination *d, __u8 protocol)
{
	struct frontend_key key = {.address = d->address, .port = d->port, .protocol = protocol};
	struct frontend *frontend = frontend_lookup(&key);

	if (frontend || !address_is_v4(&key.address) || key.address.bytes[12] != 127 ||
	    address_to_v4(&key.address) == bpf_htonl(INADDR_LOOPBACK))
		return frontend;
	address_from_v4(&key.address, bpf_htonl(INADDR_LOOPBACK));
	return frontend_lookup(&key);
}

/* The address the socket is bound to, which is all that can be known of its
 * source before the route is chosen; unspecified if it is not bound. */
static __always_inline void bound_address(const struct bpf_sock_addr *ctx, struct address *source)
{
	const struct bpf_sock *sk = ctx->sk;

	address_from_v4(source, 0);
	if (!sk)
		return;
	if (ctx->family == 2 /* AF_INET */) {
		address_from_v4(source, sk->src_ip4);
	} else {
		__u32 *words = address_words(source);

		words[0] = sk->src_ip6[0];
		words[1] = sk->src_ip6[1];
		words[2] = sk->src_ip6[2];
		words[3] = sk->src_ip6[3];
	}
}

/* The client that a socket is of. A network namespace is one client in each
 * family, as a pod is with an address of each: a backend of one family is in no
 * set of the other, and would end the affinity there. */
static __always_inline void client_of_namespace(__u64 netns_cookie, int is_v4,
						struct address *client)
{
	__u32 *words = address_words(client);

	words[0] = 0;
	words[1] = 0;
	words[2] = netns_cookie >> 32;
	words[3] = (__u32)netns_cookie;
	client->bytes[0] = 0xff;
	client->bytes[1] = is_v4 ? 4 : 6;
}

/* The decision for a destination; a verdict other than BALANCE is final. */
static __always_inline enum verdict decide(struct bpf_sock_addr *ctx,
					   const struct frontend *frontend, __u64 netns_cookie,
					   const struct decision **decision)
{
	if (frontend->source_set) {
		struct address source;

		/* An unbound socket's source is not known yet: the packet tells. */
		bound_address(ctx, &source);
		if (address_is_unspecified(&source))
			return VERDICT_PASS;
		if (!source_admitted(frontend->source_set, &source))
			return VERDICT_DROP;
	}
	if (netns_cookie == host_netns_cookie)
		*decision = &frontend->decisions[FROM_NODE];
	else
		*decision = &frontend->decisions[FROM_POD];
	if ((*decision)->count)
		return VERDICT_BALANCE;
	return (*decision)->verdict;
}

/* Chooses a backend, remembers the question with the socket and puts the
 * answer into `d`. */
static __always_inline enum verdict balance(struct bpf_sock_addr *ctx,
					    const struct frontend *frontend,
					    const struct decision *decision, __u64 netns_cookie,
					    struct destination *d)
{
	struct address client;
	struct backend *backend;
	struct connected *record;

	client_of_namespace(netns_cookie, address_is_v4(&d->address), &client);
	backend = backend_lookup(select_backend(frontend, decision, &client));
	if (!backend) {
		COUNT(connect_fault);
		return VERDICT_REJECT;
	}
	record = ctx->sk ? bpf_sk_storage_get(&connected, ctx->sk, 0, BPF_SK_STORAGE_GET_F_CREATE)
			 : 0;
	if (record) {
		record->service = d->address;
		record->service_port = d->port;
		record->backend = backend->address;
		record->backend_port = backend->port;
	} else {
		COUNT(record_failed); /* the connection works all the same */
	}
	d->address = backend->address;
	d->port = backend->port;
	return VERDICT_BALANCE;
}

/* VERDICT_BALANCE: `d` has been rewritten. */
static __always_inline enum verdict connect_verdict(struct bpf_sock_addr *ctx,
						    struct destination *d)
{
	const struct decision *decision = 0;
	struct frontend *frontend = frontend_of(d, ctx->protocol);
	enum verdict verdict;
	__u64 netns_cookie;

	if (!frontend)
		return in_service_network(&d->address) ? VERDICT_DROP : VERDICT_PASS;
	netns_cookie = bpf_get_netns_cookie(ctx);
	verdict = decide(ctx, frontend, netns_cookie, &decision);
	if (verdict != VERDICT_BALANCE || !decision)
		return verdict;
	return balance(ctx, frontend, decision, netns_cookie, d);
}

/* `write` puts a rewritten destination back. Whatever an earlier connect() of
 * this socket left behind goes: the record is that of the latest one. */
static __always_inline int connect_hook(struct bpf_sock_addr *ctx, struct destination *d,
					void (*write)(struct bpf_sock_addr *,
						      const struct destination *))
{
	enum verdict verdict;

	if (ctx->protocol != IPPROTO_TCP)
		return HOOK_PROCEED;
	verdict = connect_verdict(ctx, d);
	if (verdict == VERDICT_BALANCE) {
		COUNT(connect_balance);
		write(ctx, d);
		return HOOK_PROCEED;
	}
	if (ctx->sk)
		bpf_sk_storage_delete(&connected, ctx->sk);
	switch (verdict) {
	case VERDICT_REJECT:
		COUNT(connect_reject);
		bpf_set_retval(-ECONNREFUSED);
		return HOOK_REFUSE;
	case VERDICT_DROP:
		/* A packet would be dropped in silence; waiting for the timeout serves
		 * nobody, so this is what a local firewall rule answers. */
		COUNT(connect_drop);
		bpf_set_retval(-EPERM);
		return HOOK_REFUSE;
	default:
		COUNT(connect_pass);
		return HOOK_PROCEED;
	}
}

/* The record speaks of the latest connect() only; comparing it with the peer
 * costs nothing and keeps a wrong answer impossible. */
static __always_inline int getpeername_hook(struct bpf_sock_addr *ctx, struct destination *d,
					    void (*write)(struct bpf_sock_addr *,
							  const struct destination *))
{
	struct connected *record;

	record = ctx->sk ? bpf_sk_storage_get(&connected, ctx->sk, 0, 0) : 0;
	if (record && record->backend_port == d->port &&
	    address_equal(&record->backend, &d->address)) {
		d->address = record->service;
		d->port = record->service_port;
		write(ctx, d);
		COUNT(peer_name);
	}
	return HOOK_PROCEED; /* the kernel accepts nothing else here */
}

SEC("cgroup/connect4")
int beeline_connect4(struct bpf_sock_addr *ctx)
{
	struct destination d;

	destination_read4(ctx, &d);
	return connect_hook(ctx, &d, destination_write4);
}

SEC("cgroup/connect6")
int beeline_connect6(struct bpf_sock_addr *ctx)
{
	struct destination d;

	destination_read6(ctx, &d);
	return connect_hook(ctx, &d, destination_write6);
}

SEC("cgroup/getpeername4")
int beeline_getpeername4(struct bpf_sock_addr *ctx)
{
	struct destination d;

	destination_read4(ctx, &d);
	return getpeername_hook(ctx, &d, destination_write4);
}

SEC("cgroup/getpeername6")
int beeline_getpeername6(struct bpf_sock_addr *ctx)
{
	struct destination d;

	destination_read6(ctx, &d);
	return getpeername_hook(ctx, &d, destination_write6);
}

char _license[] SEC("license") = "Dual BSD/GPL";
