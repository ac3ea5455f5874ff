// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The socket shortcut: a Service address becomes a backend's when a program
 * connects, or sends a datagram, and no packet is ever translated.
 *
 *   connect4, connect6           look up, decide, choose, rewrite: TCP, UDP
 *   sendmsg4, sendmsg6           the same for each datagram of an unconnected
 *                                socket: a socket's datagrams to one Service
 *                                have one backend as long as that serves
 *   recvmsg4, recvmsg6           answer the address that was asked for
 *   getpeername4, getpeername6   likewise
 *
 * An AF_INET6 socket that asks for ::ffff:a.b.c.d comes through connect6,
 * sendmsg4 and recvmsg6, and needs no care of its own: tables and records hold
 * IPv4 in that form.
 *
 * Errors are those that connect(2) and sendto(2) document, since the kernel's
 * own clients (NFS, CIFS) come through here too. SCTP and UDP-Lite are left
 * alone: of SCTP the packets are served (lib/edge.h).
 */
#include <linux/bpf.h>
#include <linux/errno.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "lib/flow.h"
#include "lib/frontend.h"
#include "lib/record.h"
#include "lib/select.h"
#include "lib/snat.h"
#include "lib/socket.h"
#include "lib/tables.h"

/* For the agent's types: nothing here has it as a type. */
const enum frontend_flag *unused_frontend_flag __attribute__((unused));
const enum socket_mark *unused_socket_mark __attribute__((unused));
const enum dsr *unused_dsr __attribute__((unused));
const enum history_word *unused_history_word __attribute__((unused));

/* Whether packets are served, too (lib/edge.h). Set by the loader. */
const volatile __u8 edge_serves = 0;

enum { HOOK_REFUSE = 0, HOOK_PROCEED = 1 };

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

/* The verdict for a source where a frontend does not admit all: BALANCE is none. The source is
 * what is known of it before the route is chosen: unspecified where the socket is not bound.
 * Not static: the verifier looks at it once. */
__noinline int source_verdict(const struct frontend *frontend, const struct address *source,
			      int node)
{
	if (!frontend || !source)
		return VERDICT_DROP;
	/* The node asks its own address from that address. Else an unbound
	 * socket's source is not known yet: the packet tells. */
	if (address_is_unspecified(source) && node && frontend->flags & FRONTEND_OWN_ADDRESS)
		source = &frontend->key.address;
	if (address_is_unspecified(source))
		return VERDICT_PASS;
	return source_admitted(frontend->source_set, source) ? VERDICT_BALANCE : VERDICT_DROP;
}

/* The decision for a destination; a verdict other than BALANCE is final. */
static __always_inline enum verdict decide(const struct frontend *frontend,
					   const struct address *source, __u64 netns_cookie,
					   const struct decision **decision)
{
	int node = netns_cookie == host_netns_cookie;
	enum verdict verdict;

	if (frontend->source_set) {
		verdict = source_verdict(frontend, source, node);
		if (verdict != VERDICT_BALANCE)
			return verdict;
	}
	*decision = &frontend->decisions[node ? FROM_NODE : FROM_POD];
	if ((*decision)->count)
		return VERDICT_BALANCE;
	return (*decision)->verdict;
}

/* What no frontend has: nobody's business, or an address that belongs to
 * Services (R21). */
static __always_inline enum verdict verdict_without_frontend(struct bpf_sock_addr *ctx,
							     const struct destination *d)
{
	if (!in_service_network(&d->address))
		return VERDICT_PASS;
	return has_opted_out(bpf_get_netns_cookie(ctx)) ? VERDICT_PASS : VERDICT_DROP;
}

/* The backend that a UDP socket has for a service, by connect() or by its
 * datagrams, if it still serves (R29). */
static __always_inline int backend_of_socket(struct bpf_sock *sk, const struct frontend *frontend,
					     const struct destination *service,
					     struct destination *backend)
{
	struct flow_set set;
	struct flow *flow;

	if (backend_of_connect(sk, frontend, service, backend))
		return 1;
	flows_of(sk, &set);
	flow = set.few ? flow_by_service(&set, service) : 0;
	if (!flow)
		return 0;
	destination_set(backend, &flow->backend, flow->backend_port);
	return serves(frontend, backend, &flow->slot);
}

/* VERDICT_BALANCE: `d` has been rewritten. */
static __always_inline enum verdict connect_verdict(struct bpf_sock_addr *ctx,
						    struct destination *d)
{
	struct destination service, chosen;
	const struct decision *decision = 0;
	struct address source, client;
	struct frontend *frontend;
	struct backend *backend;
	enum verdict verdict;
	__u64 netns_cookie;

	if (ctx->sk->mark == MARK_PROBE)
		return VERDICT_PASS;
	socket_address(ctx->sk, &source);
	destination_meant(d, &source);
	frontend = frontend_of(d, ctx->protocol);
	if (!frontend)
		return verdict_without_frontend(ctx, d);
	netns_cookie = bpf_get_netns_cookie(ctx);
	if (has_opted_out(netns_cookie)) {
		COUNT(opted_out);
		return VERDICT_PASS;
	}
	/* A UDP socket's connect() sends nothing. Programs use it to learn their own
	 * address, whatever the port (getaddrinfo, RFC 6724 section 5). What they send
	 * then is for the packet path to reject. */
	if (ctx->protocol == IPPROTO_UDP && frontend->kind == FRONTEND_CLUSTER_IP_OTHER)
		return VERDICT_PASS;
	service = *d;
	if (ctx->protocol != IPPROTO_UDP ||
	    !backend_of_socket(ctx->sk, frontend, &service, &chosen)) {
		verdict = decide(frontend, &source, netns_cookie, &decision);
		if (verdict != VERDICT_BALANCE || !decision)
			return verdict;
		client_of_namespace(netns_cookie, address_is_v4(&d->address), &client);
		backend = backend_lookup(
			select_backend(frontend, decision, &client, bpf_get_prandom_u32()));
		if (!backend) {
			COUNT(connect_fault);
			return VERDICT_REJECT;
		}
		destination_set(&chosen, &backend->address, backend->port);
	}
	record_connect(ctx->sk, &service, &chosen);
	*d = chosen;
	return VERDICT_BALANCE;
}

/* `write` puts a rewritten destination back. */
static __always_inline int connect_hook(struct bpf_sock_addr *ctx, struct destination *d,
					void (*write)(struct bpf_sock_addr *,
						      const struct destination *))
{
	enum verdict verdict;

	if (ctx->protocol != IPPROTO_TCP && ctx->protocol != IPPROTO_UDP)
		return HOOK_PROCEED;
	verdict = connect_verdict(ctx, d);
	if (verdict == VERDICT_BALANCE) {
		COUNT(connect_balance);
		write(ctx, d);
		return HOOK_PROCEED;
	}
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
		forget_connect(ctx->sk, d);
		COUNT(connect_pass);
		return HOOK_PROCEED;
	}
}

/* A datagram to a plain address, of a socket that asks Services too: if the same
 * address is also a backend of one of these, its answers have to be told apart. */
static __always_inline void note_plain(struct bpf_sock *sk, struct flow_set *set,
				       const struct destination *d)
{
	struct flow *flow = flow_by_service(set, d), *other;

	if (flow && flow_plain(flow)) {
		flow_ask(set, flow);
		return;
	}
	if (flow)
		flow_clear(flow); /* the address is no Service's any more */
	other = flow_by_backend(set, d);
	if (!other)
		return;
	if (flow_holds(other))
		flow_begin(sk, set, d, d);
	else
		flow_clear(other);
}

/* How often a backend that another flow of the socket has is passed over. */
#define OTHER_CHOICES 3

/* Chooses a backend for a socket's first datagram to a service, another one than
 * those that the socket asks already if there is one: answers are told apart by
 * where they come from. */
static __always_inline int choose_for_flow(const struct frontend *frontend,
					   const struct decision *decision,
					   const struct address *client, struct flow_set *set,
					   struct destination *chosen)
{
	for (int i = 0; i <= OTHER_CHOICES; i++) {
		struct backend *backend = backend_lookup(
			select_backend(frontend, decision, client, bpf_get_prandom_u32()));

		if (!backend)
			return 0;
		destination_set(chosen, &backend->address, backend->port);
		if (frontend->affinity_seconds || !set->few || !flow_by_backend(set, chosen))
			return 1;
	}
	return 1;
}

static __always_inline enum verdict sendmsg_verdict(struct bpf_sock_addr *ctx,
						    struct destination *d, struct address *source)
{
	const struct decision *decision = 0;
	struct destination service, chosen;
	struct frontend *frontend;
	struct address client;
	struct flow_set set;
	enum verdict verdict;
	__u64 netns_cookie;
	struct flow *flow;

	if (address_is_unspecified(source))
		socket_address(ctx->sk, source);
	destination_meant(d, source);
	/* A connected socket stays with its peer. One of AF_INET6 with an IPv4 peer
	 * comes through here with each send(2) (udpv6_sendmsg). */
	if (connected_to(ctx->sk, &d->address, d->port))
		return VERDICT_PASS;
	flows_of(ctx->sk, &set);
	frontend = frontend_of(d, IPPROTO_UDP);
	if (!frontend) {
		verdict = verdict_without_frontend(ctx, d);
		if (set.few && verdict == VERDICT_PASS)
			note_plain(ctx->sk, &set, d);
		return verdict;
	}
	netns_cookie = bpf_get_netns_cookie(ctx);
	if (has_opted_out(netns_cookie)) {
		COUNT(opted_out);
		return VERDICT_PASS;
	}
	/* An answer to a client of this node whom the edge has lent the Service's name
	 * (lib/outbound.h); of what is none the packet path says so. */
	if (edge_serves && frontend->kind == FRONTEND_CLUSTER_IP_OTHER && snat_has(d->port))
		return VERDICT_PASS;
	service = *d;
	flow = set.few ? flow_by_service(&set, &service) : 0;
	if (flow) {
		destination_set(&chosen, &flow->backend, flow->backend_port);
		if (serves(frontend, &chosen, &flow->slot)) {
			flow_ask(&set, flow);
			*d = chosen;
			return VERDICT_BALANCE;
		}
		flow_clear(flow);
	}
	if (!backend_of_connect(ctx->sk, frontend, &service, &chosen)) {
		verdict = decide(frontend, source, netns_cookie, &decision);
		if (verdict != VERDICT_BALANCE || !decision)
			return verdict;
		client_of_namespace(netns_cookie, address_is_v4(&d->address), &client);
		if (!choose_for_flow(frontend, decision, &client, &set, &chosen)) {
			COUNT(datagram_fault);
			return VERDICT_REJECT;
		}
	}
	COUNT(flow_new);
	flow_begin(ctx->sk, &set, &service, &chosen);
	*d = chosen;
	return VERDICT_BALANCE;
}

static __always_inline int
sendmsg_hook(struct bpf_sock_addr *ctx, struct destination *d, struct address *source,
	     void (*write)(struct bpf_sock_addr *, const struct destination *))
{
	if (ctx->protocol != IPPROTO_UDP)
		return HOOK_PROCEED;
	switch (sendmsg_verdict(ctx, d, source)) {
	case VERDICT_BALANCE:
		COUNT(datagram_balance);
		write(ctx, d);
		return HOOK_PROCEED;
	case VERDICT_REJECT:
		COUNT(datagram_reject);
		bpf_set_retval(-ECONNREFUSED);
		return HOOK_REFUSE;
	case VERDICT_DROP:
		COUNT(datagram_drop);
		bpf_set_retval(-EPERM);
		return HOOK_REFUSE;
	default:
		COUNT(datagram_pass);
		return HOOK_PROCEED;
	}
}

static __always_inline int getpeername_hook(struct bpf_sock_addr *ctx, struct destination *d,
					    void (*write)(struct bpf_sock_addr *,
							  const struct destination *))
{
	if (connected_name(ctx, d)) {
		write(ctx, d);
		COUNT(peer_name);
	}
	return HOOK_PROCEED; /* the kernel accepts nothing else here */
}

/* The service address behind the backend that a datagram came from. A question
 * that was asked while the backend served is still answered under the name it
 * was asked, once; a Service that is gone has no name. */
static __always_inline int flow_name(struct bpf_sock_addr *ctx, struct destination *d)
{
	struct destination service, backend;
	struct frontend *frontend;
	struct flow_set set;
	struct flow *flow;
	__u32 asked;
	int holds;

	flows_of(ctx->sk, &set);
	flow = set.few ? flow_by_backend(&set, d) : 0;
	if (!flow || connected_to(ctx->sk, &d->address, d->port))
		return 0;
	asked = flow->waiting;
	flow_answered(flow);
	if (flow_plain(flow))
		return 0;
	flow_ends(flow, &service, &backend);
	frontend = frontend_of(&service, IPPROTO_UDP);
	holds = frontend && serves(frontend, &backend, &flow->slot);
	if (!holds)
		flow_clear(flow);
	if (!frontend || (!holds && !asked))
		return 0;
	*d = service;
	return 1;
}

static __always_inline int recvmsg_hook(struct bpf_sock_addr *ctx, struct destination *d,
					void (*write)(struct bpf_sock_addr *,
						      const struct destination *))
{
	if (ctx->protocol == IPPROTO_UDP && (connected_name(ctx, d) || flow_name(ctx, d))) {
		write(ctx, d);
		COUNT(datagram_name);
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

SEC("cgroup/sendmsg4")
int beeline_sendmsg4(struct bpf_sock_addr *ctx)
{
	struct address source;
	struct destination d;

	destination_read4(ctx, &d);
	address_from_v4(&source, ctx->msg_src_ip4); /* of IP_PKTINFO, if there is one */
	return sendmsg_hook(ctx, &d, &source, destination_write4);
}

SEC("cgroup/sendmsg6")
int beeline_sendmsg6(struct bpf_sock_addr *ctx)
{
	struct address source;
	__u32 *words = address_words(&source);
	struct destination d;

	destination_read6(ctx, &d);
	words[0] = ctx->msg_src_ip6[0];
	words[1] = ctx->msg_src_ip6[1];
	words[2] = ctx->msg_src_ip6[2];
	words[3] = ctx->msg_src_ip6[3];
	return sendmsg_hook(ctx, &d, &source, destination_write6);
}

SEC("cgroup/recvmsg4")
int beeline_recvmsg4(struct bpf_sock_addr *ctx)
{
	struct destination d;

	destination_read4(ctx, &d);
	return recvmsg_hook(ctx, &d, destination_write4);
}

SEC("cgroup/recvmsg6")
int beeline_recvmsg6(struct bpf_sock_addr *ctx)
{
	struct destination d;

	destination_read6(ctx, &d);
	return recvmsg_hook(ctx, &d, destination_write6);
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
