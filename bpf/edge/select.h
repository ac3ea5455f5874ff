/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Selects the backend for the first packet of a flow. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "conntrack/types.h"
#include "dsr/decap.h"
#include "dsr/forward.h"
#include "edge/kernel_flow.h"
#include "edge/source.h"
#include "filter/source_class.h"
#include "filter/xfrm.h"
#include "lb/address.h"
#include "lb/backend_select.h"
#include "lb/frontend.h"
#include "lb/jet.h"
#include "lb/maps.h"
#include "lb/types.h"
#include "packet/packet.h"
#include "route/redirect.h"
#include "state/events.h"
#include "state/losses.h"
#include "state/scratch.h"
#include "state/types.h"

/* Applies a verdict other than BALANCE. */
static __always_inline enum action apply_verdict(struct context *ctx, enum verdict verdict)
{
	switch (verdict) {
	case VERDICT_REJECT:
		return reject(ctx);
	case VERDICT_DROP:
		return drop(ctx, EDGE_DROP_POLICY);
	default:
		return pass(ctx, EDGE_NOT_SERVICE);
	}
}

/* Returns the state of a flow that has had no entry: it is established, or nearly over. */
static __always_inline enum ct_state state_of_untracked(__u8 tcp_flags)
{
	if (tcp_flags & TCP_RST)
		return CT_CLOSED;
	return tcp_flags & TCP_FIN ? CT_CLOSING : CT_ESTABLISHED;
}

/* Selects a backend for the first packet of a flow, or of one that has lost its entries. With
 * ACTION_CONTINUE w->ct.entry is the new entry, except for its source; other actions are for a
 * packet without a backend. Global function: the verifier checks it once. */
__noinline enum action edge_select(struct context *ctx, enum source_class class)
{
	struct scratch *w = scratch_get();
	const struct decision *decision;
	struct frontend_key asked = {};
	struct frontend *frontend;
	struct backend *backend;
	struct ct_entry *ct;
	enum action action;
	__u32 stable = 0, dsr;
	struct packet *p;

	if (!w)
		return packet_drop(ctx);
	p = &w->packet;
	ct = &w->ct.entry;
	asked.address = p->tuple.destination;
	asked.port = p->tuple.destination_port;
	asked.protocol = p->tuple.protocol;
	frontend = w->decap.chosen ? frontend_of_balancer(ctx, &p->tuple) : frontend_lookup(&asked);
	if (!frontend)
		return in_service_network(&p->tuple.destination) ? drop(ctx, EDGE_DROP_NO_SERVICE)
								 : pass(ctx, EDGE_NOT_SERVICE);
	if (address_is_loopback(&asked.address)) { /* served by the socket hooks only (R22) */
		return pass(ctx, EDGE_NOT_SERVICE);
	}
	w->in.service = frontend->service;
	if (dry_run)
		explain_choice(frontend, class);
	if (!w->in.egress && !w->decap.dsr && !source_is_valid(ctx, w))
		return drop(ctx, EDGE_DROP_REVERSE_PATH);
	action = kernel_flow_pass(ctx, w);
	if (action != ACTION_CONTINUE)
		return action;
	if (frontend->source_set && !source_admitted(frontend->source_set, &p->tuple.source))
		return drop(ctx, EDGE_DROP_SOURCE);
	decision = decision_for(frontend, class);
	dsr = frontend->dsr;
	if (class == FROM_OUTSIDE && !w->in.egress && !w->decap.dsr && !(p->tcp_flags & TCP_SYN))
		stable = jet_backend(frontend, p->tuple.protocol, w->in.hash, &dsr);
	if (!decision->count && !w->decap.chosen && !stable) {
		if (decision->verdict == VERDICT_DROP && class == FROM_OUTSIDE)
			count_policy_drop(&asked);
		return apply_verdict(ctx, decision->verdict);
	}
	__builtin_memset(ct, 0, sizeof(*ct));
	ct->tag = w->in.hash;
	ct->lb.backend = stable ? stable : w->decap.chosen;
	if (!ct->lb.backend)
		ct->lb.backend = select_backend(frontend, class, &p->tuple.source, w->in.hash);
	backend = backend_lookup(ct->lb.backend);
	if (!backend)
		return drop(ctx, EDGE_DROP_NO_BACKEND);
	if (p->tuple.protocol == IPPROTO_SCTP && backend->port != p->tuple.destination_port)
		return drop(ctx, EDGE_DROP_SCTP_PORT);
	ct->lb.service = frontend->service;
	ct->dsr = dsr_of(dsr, backend, class, &p->tuple.source);
	if (stable) {
		ct->state = state_of_untracked(p->tcp_flags);
		ct->flags = p->tcp_flags & TCP_FIN ? CT_FIN : 0;
	}
	ct->last_seen = w->clock.second;
	ct->device = packet_device(ctx);
	ct->packets = 1;
	ct->bytes = p->length;
	ct->xlate = p->tuple;
	ct->xlate.destination = backend->address;
	ct->xlate.destination_port = backend->port;
	if (xfrm_concerns(&p->tuple) || xfrm_concerns(&ct->xlate))
		return drop(ctx, EDGE_DROP_XFRM);
	return ACTION_CONTINUE;
}
