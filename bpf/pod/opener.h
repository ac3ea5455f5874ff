/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Who opened the flows of the shortcut. The kernel's conntrack has not seen them. If one of them
 * has to take the stack, it must be known there in the direction in which it was opened: otherwise
 * the next packet of the other end would be a new connection in the wrong direction, which a policy
 * may deny although it allows the connection.
 *
 * A record is written and refreshed by decisions, not by each packet. It is deleted when TCP
 * closes. A flow whose record was evicted is taken to the stack without an entry. */
#pragma once

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>

#include "packet/packet.h"
#include "packet/tuple.h"
#include "packet/types.h"
#include "pod/maps.h"
#include "pod/types.h"
#include "state/scratch.h"

/* As the kernel's conntrack: UDP counts as a lasting flow after 2 seconds of packets in both
 * directions, and a flow without packets for 120 seconds has ended. */
#define POD_UDP_LASTING 2
#define POD_UDP_TIMEOUT 120

enum pod_opener {
	OPENER_UNKNOWN,
	OPENER_SENDER,	 /* of this packet */
	OPENER_RECEIVER, /* of this packet */
};

/* Finds the record of a flow by the tuple of a packet and its reverse. */
static __always_inline struct pod_record *pod_record_of(void *table, const struct tuple *t,
							const struct tuple *reverse,
							enum pod_opener *opener)
{
	struct pod_record *record = bpf_map_lookup_elem(table, t);

	*opener = OPENER_SENDER;
	if (record)
		return record;
	*opener = OPENER_RECEIVER;
	return bpf_map_lookup_elem(table, reverse);
}

static __always_inline int pod_record_expired(const struct pod_record *record,
					      const struct packet *p, __u32 now)
{
	return p->tuple.protocol != IPPROTO_TCP && now - record->seen > POD_UDP_TIMEOUT;
}

/* Notes a packet in the record of its flow. Returns whether the flow has ended. */
static __always_inline int pod_record_note(struct pod_record *record, const struct packet *p,
					   enum pod_opener opener, __u32 now)
{
	__u32 flags = record->flags;

	if (opener == OPENER_RECEIVER)
		flags |= POD_REPLIED;
	if (p->tuple.protocol == IPPROTO_TCP && p->tcp_flags & TCP_FIN)
		flags |= opener == OPENER_SENDER ? POD_FIN : POD_FIN_REPLY;
	if (record->seen != now)
		record->seen = now;
	if (record->flags != flags)
		record->flags = flags;
	return p->tuple.protocol == IPPROTO_TCP &&
	       (p->tcp_flags & TCP_RST || (flags & POD_FIN_BOTH) == POD_FIN_BOTH);
}

/* Returns whether a flow is remembered in pod_established: floods do not get there, because their
 * senders do not see the replies. */
static __always_inline int pod_record_lasts(const struct pod_record *record, const struct packet *p,
					    enum pod_opener opener, __u32 now)
{
	if (!(record->flags & POD_REPLIED))
		return 0;
	if (p->tuple.protocol == IPPROTO_TCP)
		return opener == OPENER_SENDER;
	return now - record->since >= POD_UDP_LASTING;
}

/* Returns who opened the flow of a packet, and notes the packet. `may_open`: a flow that is not
 * known is recorded if the packet may be its first. Global function: the verifier checks it once.
 * It finds the scratch area itself, because Linux 6.1 takes no argument as a key. */
__noinline int pod_opener_of(__u32 may_open)
{
	struct scratch *w = scratch_get();
	struct pod_record *record, copy;
	enum pod_opener opener;
	struct packet *p;
	struct tuple *t;
	__u32 now;

	if (!w)
		return OPENER_UNKNOWN;
	p = &w->packet;
	t = &p->tuple;
	now = w->clock.second;
	__builtin_memset(&copy, 0, sizeof(copy));
	copy.since = copy.seen = now;
	tuple_reverse(t, &w->ct.reverse_key);
	if (t->protocol == IPPROTO_TCP && (p->tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN) {
		if (may_open) {
			bpf_map_delete_elem(&pod_established, &w->ct.reverse_key);
			bpf_map_update_elem(&pod_opening, t, &copy, BPF_ANY);
		}
		return OPENER_UNKNOWN;
	}
	record = pod_record_of(&pod_established, t, &w->ct.reverse_key, &opener);
	if (record) {
		const struct tuple *key = opener == OPENER_SENDER ? t : &w->ct.reverse_key;
		int expired = pod_record_expired(record, p, now);

		if (expired || pod_record_note(record, p, opener, now))
			bpf_map_delete_elem(&pod_established, key);
		if (!expired)
			return opener;
	}
	record = pod_record_of(&pod_opening, t, &w->ct.reverse_key, &opener);
	if (record && !pod_record_expired(record, p, now)) {
		int ended = pod_record_note(record, p, opener, now);
		const struct tuple *key = opener == OPENER_SENDER ? t : &w->ct.reverse_key;

		if (!ended) {
			if (!pod_record_lasts(record, p, opener, now))
				return opener;
			copy = *record;
			bpf_map_update_elem(&pod_established, key, &copy, BPF_ANY);
		}
		bpf_map_delete_elem(&pod_opening, key);
		return opener;
	}
	if (may_open && t->protocol == IPPROTO_UDP) {
		if (record) /* it has expired */
			bpf_map_delete_elem(&pod_opening, &w->ct.reverse_key);
		bpf_map_update_elem(&pod_opening, t, &copy, BPF_ANY);
	}
	return OPENER_UNKNOWN;
}

/* Returns whether the packet that an ICMP error quotes is of a known flow. Global function: see
 * pod_opener_of. */
__noinline int pod_quoted_is_known(void)
{
	struct scratch *w = scratch_get();
	enum pod_opener opener;
	struct tuple *t;

	if (!w)
		return 0;
	t = &w->quoted.tuple;
	tuple_reverse(t, &w->ct.reverse_key);
	return pod_record_of(&pod_established, t, &w->ct.reverse_key, &opener) ||
	       pod_record_of(&pod_opening, t, &w->ct.reverse_key, &opener);
}
