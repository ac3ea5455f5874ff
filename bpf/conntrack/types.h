/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Layouts of conntrack entries and of their sets, shared by the programs and the agent; of the
 * ports of fragmented datagrams. */
#pragma once

#include <linux/types.h>

#include "packet/types.h"
#include "set_table/types.h"

/* The state of a flow. If its two entries differ, the later state counts. */
enum ct_state {
	CT_NEW,		/* packets of one side were seen */
	CT_REPLIED,	/* packets of both sides were seen; not assured yet */
	CT_ESTABLISHED, /* assured: TCP's handshake is complete, or UDP has continued in both
			   directions */
	CT_CLOSING,	/* a FIN was seen */
	CT_CLOSED,	/* a RST was seen, or a FIN of each side */
};

enum ct_flag {
	CT_REPLY = 1, /* direction from the backend to the client */
	/* The stack delivers the packet: the backend is on this node, or the client is a pod whose
	 * device has the edge. Replies are translated at egress of the client's device. */
	CT_LOCAL = 2,
	CT_FIN = 4, /* this side has sent a FIN */
	/* The client is this node, or a pod of it, and the edge has selected the backend instead of
	 * the socket hooks. With CT_LOCAL the backend is on this node, too. */
	CT_OUTBOUND = 8,
	/* With CT_LOCAL: the client's packets come from a balancer (DSR). */
	CT_DSR = 16,
	/* UDP: this side has sent a datagram UDP_STREAM_AFTER seconds after the flow began. */
	CT_STREAM = 32,
	/* The entry is a copy from the predecessor's table, whose programs may still update the
	 * original (migrate/predecessor.h). */
	CT_COPIED = 64,
	/* TCP, state CT_NEW: the backend on this node has sent a packet of another connection from
	 * the client's port (ct_set_port_taken). The client's next SYN gets another port. */
	CT_PORT_TAKEN = 128,
};

/* The load balancer's annex of an entry. The rest of struct ct_entry is the core, which does not
 * depend on Services, except for `dsr`, for which there is no room here. To the core `dsr` only
 * tells whether the flow has a second entry. */
struct ct_lb {
	__u32 service; /* ID in `services` */
	__u32 backend; /* ID in `backends` when the flow began */
};

/* The translation of one direction of a flow, and its state. A flow has an entry per direction.
 * Each determines the key and translation of the other: the other's key is this one's translation
 * reversed, and vice versa. With its key an entry has two cache lines. */
struct ct_entry {
	struct tuple xlate;
	struct ct_lb lb;
	__u32 last_seen; /* seconds, CLOCK_MONOTONIC */
	__u32 tag;	 /* hash of the key: the place may be reused for another key at any time */
	__u8 state;	 /* enum ct_state */
	__u8 flags;	 /* enum ct_flag */
	/* enum dsr: how the client's packets reach the backend. Unless it is DSR_NONE there is no
	 * entry of the other direction: the backend's replies do not pass this node. */
	__u8 dsr;
	/* TCP: 1: `next` and `acked` follow the packets of this side. 0: no packet seen, or the
	 * entry is from a program that left `next` as it was in the handshake. */
	__u8 follows;
	__u32 device; /* input device of the client's packets; 0: unknown. Unused with CT_OUTBOUND
		       */
	/* TCP, in host byte order (RFC 9293 section 3.4): the last acknowledgment number of this
	 * side; 0: unknown. */
	__u32 acked;
	/* TCP: the next sequence number of this side; 0: no packet seen. UDP: the second in which
	 * the flow began. */
	__u32 next;
	__u64 packets;
	__u64 bytes; /* by the IP header */
};

struct ct_slot {
	struct tuple key;
	struct ct_entry ct;
};

/* One set of a conntrack table, without its tags (conntrack/table.h). */
struct ct_set {
	struct set_evictions evictions;
	struct ct_slot entries[SET_PLACES];
};

_Static_assert(sizeof(struct ct_slot) == 128 && sizeof(struct ct_set) == 2048,
	       "an entry is a pair of cache lines, and no set lies on two pages");

/* Idle timeouts of flows, in ticks (set_table/set_table.h); indexes of ct_timeouts. */
enum ct_timeout {
	TIMEOUT_TCP_UNREPLIED, /* all timeouts of TCP also apply to SCTP */
	TIMEOUT_UDP_UNREPLIED,
	TIMEOUT_TCP_ESTABLISHED,
	TIMEOUT_UDP_STREAM,
	TIMEOUT_CLOSING,
	TIMEOUT_CLOSING_DSR, /* only the client's FIN is seen */
	TIMEOUT_CLOSED,
	TIMEOUTS,
};

/* Identifies a fragmented datagram. Only its first fragment has the ports (RFC 791, RFC 8200
 * section 4.5). */
struct fragment_key {
	struct address source;
	struct address destination;
	__u32 id;
	__u8 protocol;
	__u8 reserved[3];
};

struct fragment {
	__be16 source_port;
	__be16 destination_port;
	__u32 since; /* seconds, CLOCK_MONOTONIC */
	/* Payload still to leave, in bytes: the offset of the last fragment, which is the length of
	 * all others, minus the length of those that have left. 0: all have left. */
	__s32 missing;
};
