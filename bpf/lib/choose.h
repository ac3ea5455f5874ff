/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Which backend the first packet of a flow is for, or why none. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "client.h"
#include "decapsulate.h"
#include "direct.h"
#include "forward.h"
#include "frontend.h"
#include "packet.h"
#include "past.h"
#include "select.h"
#include "tables.h"
#include "tell.h"
#include "workspace.h"

/* What no backend gets. */
static __always_inline int judge(struct context *ctx, const struct workspace *w,
				 enum verdict verdict)
{
	switch (verdict) {
	case VERDICT_REJECT:
		/* No answer to a RST (RFC 9293 section 3.10.7.1), nor to the rest of
		 * a datagram whose beginning has one (RFC 1122 section 3.2.2). */
		if (w->packet.tcp_flags & TCP_RST || w->packet.fragment == FRAGMENT_LATER)
			return lose(ctx, w, EDGE_REJECTED);
		return refuse(ctx, w);
	case VERDICT_DROP:
		return lose(ctx, w, EDGE_DROP_POLICY);
	default:
		return leave_alone(ctx, EDGE_NOT_OURS);
	}
}

/* A flow that has had no record until now is an established one, or nearly over. */
static __always_inline enum track_state state_without_record(__u8 tcp_flags)
{
	if (tcp_flags & TCP_RST)
		return TRACK_CLOSED;
	return tcp_flags & TCP_FIN ? TRACK_CLOSING : TRACK_ESTABLISHED;
}

/* Chooses a backend for the first packet of a flow, or of one whose records have
 * been lost: w->track is then the record to be, but for its source. Where there is
 * none, `result` is what becomes of the packet. */
static __always_inline struct backend *choose(struct context *ctx, struct workspace *w,
					      enum source_class class, int *result)
{
	struct packet *p = &w->packet;
	struct frontend_key asked = {.address = p->tuple.destination,
				     .port = p->tuple.destination_port,
				     .protocol = p->tuple.protocol};
	struct frontend *frontend =
		w->wrapping.told ? frontend_told(ctx, &p->tuple) : frontend_lookup(&asked);
	const struct decision *decision;
	struct track *track = &w->track;
	struct backend *backend;
	__u32 past = 0, dsr;

	if (!frontend) {
		*result = in_service_network(&p->tuple.destination)
				  ? lose(ctx, w, EDGE_DROP_UNUSED)
				  : leave_alone(ctx, EDGE_NOT_OURS);
		return 0;
	}
	if (address_is_loopback(&asked.address)) { /* served by the socket hooks alone (R22) */
		*result = leave_alone(ctx, EDGE_NOT_OURS);
		return 0;
	}
	w->service = frontend->service;
	if (dry_run)
		explain_choice(frontend, class);
	if (frontend->source_set && !source_admitted(frontend->source_set, &p->tuple.source)) {
		*result = lose(ctx, w, EDGE_DROP_SOURCE);
		return 0;
	}
	if (class == FROM_POD)
		decision = &frontend->decisions[FROM_POD];
	else if (class == FROM_NODE)
		decision = &frontend->decisions[FROM_NODE];
	else
		decision = &frontend->decisions[FROM_OUTSIDE];
	dsr = frontend->dsr;
	if (class == FROM_OUTSIDE && !w->leaving && !w->wrapping.dsr && !(p->tcp_flags & TCP_SYN))
		past = past_backend(frontend, p->tuple.protocol, w->hash, &dsr);
	if (!decision->count && !w->wrapping.told && !past) {
		*result = judge(ctx, w, decision->verdict);
		return 0;
	}
	__builtin_memset(track, 0, sizeof(*track));
	track->tag = w->hash;
	track->backend = past ? past : w->wrapping.told;
	if (!track->backend)
		track->backend = select_backend(frontend, decision, &p->tuple.source, w->hash);
	backend = backend_lookup(track->backend);
	if (!backend) {
		*result = lose(ctx, w, EDGE_DROP_NO_BACKEND);
		return 0;
	}
	if (p->tuple.protocol == IPPROTO_SCTP && backend->port != p->tuple.destination_port) {
		*result = lose(ctx, w, EDGE_DROP_SCTP_PORT);
		return 0;
	}
	track->service = frontend->service;
	track->dsr = dsr_of(dsr, backend, class, &p->tuple.source);
	if (past) {
		track->state = state_without_record(p->tcp_flags);
		track->flags = p->tcp_flags & TCP_FIN ? TRACK_FIN : 0;
	}
	track->last_seen = second_of(w);
	track->device = packet_device(ctx);
	track->packets = 1;
	track->bytes = p->length;
	track->becomes = p->tuple;
	track->becomes.destination = backend->address;
	track->becomes.destination_port = backend->port;
	return backend;
}
