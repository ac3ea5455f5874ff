/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Health checks that take the path of clients' packets with DSR.
 *
 * The agent's socket is connected to the outer destination: the backend or, with Geneve, its node.
 * So the kernel selects route, source and next hop for it, and needs no route to the Service's
 * address, which may be local. At egress the packet is translated to the frontend's address and
 * encapsulated like a client's; the reply comes directly from the frontend's address and is
 * translated back to the address that the socket is connected to. */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>

#include "dsr/maps.h"
#include "encap/encap.h"
#include "lb/address.h"
#include "lb/types.h"
#include "packet/packet.h"
#include "packet/parse.h"
#include "packet/tuple.h"
#include "packet/types.h"
#include "route/fib.h"
#include "state/scratch.h"

/* A check in progress. Ports are in network byte order. */
struct dsr_check {
	struct address connected; /* peer of the socket, with `backend_port` */
	struct address frontend;
	struct address backend;
	__be16 frontend_port;
	__be16 backend_port;
	__u8 dsr; /* enum dsr */
	__u8 reserved[3];
};

/* By socket cookie. The agent inserts and deletes entries; those of an agent that was killed are
 * evicted. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, __u64);
	__type(value, struct dsr_check);
} dsr_checks SEC(".maps");

/* 1 while there may be entries: then packets that match nothing else are looked up. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} dsr_checks_on SEC(".maps");

static __always_inline int dsr_checks_running(void)
{
	__u32 zero = 0;
	const __u32 *on = bpf_map_lookup_elem(&dsr_checks_on, &zero);

	return on && *(const volatile __u32 *)on;
}

/* Inserts the tuple of replies to a packet. */
static __always_inline int dsr_check_expect(const struct tuple *sent, const __u64 *cookie)
{
	struct tuple answer = {.source = sent->destination,
			       .destination = sent->source,
			       .source_port = sent->destination_port,
			       .destination_port = sent->source_port,
			       .protocol = sent->protocol};

	return bpf_map_update_elem(&dsr_check_replies, &answer, cookie, BPF_ANY);
}

/* Encapsulates a packet of a check's socket. Drops it if that is impossible, so the check fails as
 * a client would. Global function: the verifier checks it once. */
__noinline enum action dsr_check_egress(struct context *ctx)
{
	__u64 cookie = bpf_get_socket_cookie(ctx);
	struct dsr_check *check = bpf_map_lookup_elem(&dsr_checks, &cookie);
	struct scratch *w = scratch_get();
	const struct address *own;
	struct packet *p;

	if (!check || !w)
		return packet_pass(ctx);
	scratch_reset(w);
	p = &w->packet;
	/* A lower tunnel or VLAN device sends the packet again, encapsulated or tagged. */
	if (packet_parse(ctx, p) != PARSED || p->fragment || p->tuple.protocol != IPPROTO_TCP ||
	    p->tuple.destination_port != check->backend_port ||
	    !address_equal(&p->tuple.destination, &check->connected))
		return packet_pass(ctx);
	own = outer_source_on(packet_device(ctx), p->is_v6);
	if (!own)
		return packet_drop(ctx);
	w->out.to = p->tuple;
	w->out.to.destination = check->frontend;
	w->out.to.destination_port = check->frontend_port;
	if (dsr_check_expect(&p->tuple, &cookie) || dsr_check_expect(&w->out.to, &cookie) ||
	    packet_translate(ctx, p, &w->out.to, 0))
		return packet_drop(ctx);
	p->tuple = w->out.to;
	w->in.hash = tuple_hash(&p->tuple);
	w->encap.dsr = check->dsr;
	w->out.to.destination = check->backend;
	w->out.to.destination_port = check->backend_port;
	dsr_outer(w, &check->connected);
	if (w->encap.dsr != DSR_OPT)
		w->encap.outer.source = *own;
	if (encapsulate(ctx, w))
		return packet_drop(ctx);
	packet_mark_encapsulated(ctx);
	return packet_pass(ctx);
}

/* Translates replies from a frontend to a check's socket. Drops a reply from the backend's own
 * address, which no client would accept: the backend has not reversed DSR, for example because it
 * ignores the option. Global function: the verifier checks it once. */
__noinline enum action dsr_check_ingress(struct context *ctx)
{
	struct scratch *w = scratch_get();
	const struct dsr_check *check;
	const __u64 *cookie;
	struct packet *p;

	if (!w)
		return packet_pass(ctx);
	scratch_reset(w);
	p = &w->packet;
	if (packet_parse(ctx, p) != PARSED || p->fragment || p->tuple.protocol != IPPROTO_TCP)
		return packet_pass(ctx);
	cookie = bpf_map_lookup_elem(&dsr_check_replies, &p->tuple);
	check = cookie ? bpf_map_lookup_elem(&dsr_checks, cookie) : 0;
	if (!check)
		return packet_pass(ctx);
	if (!address_equal(&p->tuple.source, &check->frontend))
		return packet_drop(ctx);
	w->out.to = p->tuple;
	w->out.to.source = check->connected;
	w->out.to.source_port = check->backend_port;
	return packet_translate(ctx, p, &w->out.to, 0) ? packet_drop(ctx) : packet_pass(ctx);
}
