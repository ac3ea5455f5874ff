/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The structures of the edge that programs and agent both know; types.h says how
 * addresses, ports and numbers are kept. */
#pragma once

#include "set_table_types.h"
#include "types.h"

/* The two ends of a packet, as it has them. Aligned as it is hashed. */
struct tuple {
	struct address source;
	struct address destination;
	__be16 source_port;
	__be16 destination_port;
	__u8 protocol;
	__u8 reserved[3];
} __attribute__((aligned(8)));

/* How far a connection has got. The later state of its two entries counts. */
enum track_state {
	TRACK_NEW,	   /* one side has been heard */
	TRACK_ANSWERED,	   /* both have, and the flow is not assured yet */
	TRACK_ESTABLISHED, /* assured: TCP's handshake is complete, UDP goes on in both directions
			    */
	TRACK_CLOSING,	   /* a FIN has been seen */
	TRACK_CLOSED,	   /* a RST, or a FIN of each side */
};

enum track_flag {
	TRACK_REPLY = 1, /* from the backend to the client */
	TRACK_LOCAL = 2, /* the backend is on this node: the stack takes it there */
	TRACK_FIN = 4,	 /* this side has sent a FIN */
	/* The client is this node, or a pod of it, and its socket has left the choice to
	 * the packet. With TRACK_LOCAL the backend is on this node, too. */
	TRACK_OUTBOUND = 8,
	/* With TRACK_LOCAL: a balancer has sent the client's packets here (DSR). */
	TRACK_DSR = 16,
	/* UDP: this side has sent a datagram UDP_ASSURED_AFTER seconds after the flow began. */
	TRACK_LATER = 32,
};

/* What becomes of the packets of one direction of a flow. A flow has two entries, and
 * each tells all of the other: what this one's packets become is, turned round,
 * what the other one's are, and the other way about. With its key it is two cache lines. */
struct track {
	struct tuple becomes;
	__u32 service;	 /* id in `services` */
	__u32 backend;	 /* id in `backends` when the flow began */
	__u32 last_seen; /* seconds, CLOCK_MONOTONIC */
	__u32 tag;	 /* hash of the key: its place is used again for another at any time */
	__u8 state;	 /* enum track_state */
	__u8 flags;	 /* enum track_flag */
	/* enum dsr: how the client's packets reach the backend. Unless it is DSR_NONE there is
	 * no entry of the other direction: what the backend answers does not come here. */
	__u8 dsr;
	__u8 reserved;
	__u32 device; /* that the client's packets come by; 0: not known. Of no use to
			 TRACK_OUTBOUND */
	/* Of TCP, in host byte order (RFC 9293 section 3.4): what this side has acknowledged
	 * last; 0: not known. */
	__u32 acked;
	/* Of TCP: what follows the last that this side has sent, kept up to date only in
	 * `half_open` and with DSR; 0: nothing has been heard of it. Of UDP: the second at which
	 * the flow began. */
	__u32 next;
	__u64 packets;
	__u64 bytes; /* from the IP header on */
};

struct conntrack_entry {
	struct tuple key;
	struct track track;
};

/* One set of a table of flows (conntrack_table.h). */
struct conntrack_set {
	struct set_head head;
	struct conntrack_entry entries[SET_PLACES];
};

_Static_assert(sizeof(struct conntrack_entry) == 128 && sizeof(struct conntrack_set) % 64 == 0,
	       "entries are whole cache lines");

/* For how long a flow is remembered on which nothing is sent, in ticks (set_table.h); indexes of
 * conntrack_timeouts. */
enum conntrack_timeout {
	TIMEOUT_HALF_OPEN_TCP, /* and SCTP, as with all of TCP's */
	TIMEOUT_HALF_OPEN_UDP,
	TIMEOUT_TCP,
	TIMEOUT_UDP,
	TIMEOUT_CLOSING,
	TIMEOUT_CLOSED,
	TIMEOUTS,
};

/* The ports of a datagram that comes in fragments, of which only the first has
 * them (RFC 791, RFC 8200 section 4.5). */
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
};

/* A device of the node that clients, other nodes or pods of its own are behind. */
struct edge_device {
	struct address source4; /* what is sent in the node's name has; unspecified: none */
	struct address source6;
	struct address outer4; /* what is put around packets (DSR) has: what other nodes know
				  this one by, wherever it leaves */
	struct address outer6;
	__u8 mac[6]; /* what frames for the node have; 0: the device is no Ethernet */
	__u8 pods;   /* 1: pods of this node are behind it, and what they ask of others is met
			where it leaves */
	__u8 reserved;
};

/* What the door (door.h) is made of. */
enum door_size {
	DOOR_WORDS = 8192,    /* of 64 bits, in each of the two sets */
	DOOR_WORD_SHIFT = 51, /* of a hash: its upper bits are the word, those below the bit */
	DOOR_BIT_SHIFT = 45,
	DOOR_NETWORKS = 2, /* of each family */
	DOOR_PODS = 4,	   /* of each family */
};

/* The halves of what hashes are multiplied by. */
enum door_multiplier {
	DOOR_FIRST_HIGH = 0x9e3779b9,
	DOOR_FIRST_LOW = 0x7f4a7c15,
	DOOR_LAST_HIGH = 0xd6e8feb8,
	DOOR_LAST_LOW = 0x6659fd93,
};

/* Its addresses are those of which (address & mask) == value. */
struct door_network4 {
	__be32 mask;
	__be32 value;
};

struct door_network6 {
	__u64 mask[2]; /* as they lie in memory */
	__u64 value[2];
};

enum door_state {
	DOOR_OPEN,  /* nobody has filled the sets: everything is looked up */
	DOOR_FIRST, /* this one holds */
	DOOR_SECOND,
};

struct door {
	__u32 state;	  /* enum door_state */
	__u32 pods_whole; /* 1: all addresses of pods are those of `pods4` and `pods6` */
	/* What is ours as a whole: ServiceCIDRs. Where there are more than find room here, one is
	 * around several. */
	struct door_network4 services4[DOOR_NETWORKS];
	/* The networks of pods, or the largest of them: `networks` has all. */
	struct door_network4 pods4[DOOR_PODS];
	__u64 unused;
	struct door_network6 services6[DOOR_NETWORKS];
	struct door_network6 pods6[DOOR_PODS];
	__u64 bits[2 * DOOR_WORDS];
};

/* Why a packet met what it met. Matches datapath.EdgeReason. */
enum edge_reason {
	EDGE_NOT_OURS,	      /* no Service's, and no flow's */
	EDGE_ESTABLISHED,     /* a flow's */
	EDGE_REPLY,	      /* a flow's, from the backend */
	EDGE_NEW,	      /* the first of a flow */
	EDGE_ADOPTED,	      /* of a flow one of whose records had been lost */
	EDGE_UNTRACKED,	      /* to the backend that its slot has, without a record (DSR) */
	EDGE_ICMP,	      /* an ICMP error about a packet of a flow */
	EDGE_REJECTED,	      /* answered: RST, or ICMP port unreachable */
	EDGE_ECHO,	      /* answered: ICMP echo request */
	EDGE_DROP_POLICY,     /* traffic policy Local, and no local endpoint */
	EDGE_DROP_SOURCE,     /* not in loadBalancerSourceRanges */
	EDGE_DROP_UNUSED,     /* an address of a ServiceCIDR that no Service has */
	EDGE_DROP_NO_BACKEND, /* nothing behind a slot: the tables are damaged */
	EDGE_DROP_NO_ROUTE,   /* the node has none to the backend or client */
	EDGE_DROP_FORWARDING, /* the kernel forwards nothing that comes by the device (sysctl) */
	EDGE_DROP_NO_ADDRESS, /* the device has none to send in the node's name */
	EDGE_DROP_NO_PORT,    /* no SNAT port was free; of SCTP: the client's own was not */
	EDGE_DROP_SCTP_PORT,  /* SCTP, and the backend has another port than was asked */
	EDGE_DROP_NO_RECORD,  /* the flow could not be stored */
	EDGE_DROP_SPOOFED,    /* encapsulated for a backend of this node, and by no balancer */
	EDGE_DROP_NOT_HERE,   /* encapsulated for a backend that the Service does not have here */
	EDGE_DROP_FRAGMENT, /* a fragment whose first one has not been seen; dropped if it is for a
			       Service */
	/* TCP that neither begins a connection nor goes on with one that is known: RST, FIN,
	 * SYN+ACK or no flag */
	EDGE_DROP_INVALID,
	EDGE_DROP_MALFORMED, /* headers that contradict themselves, or a source that no packet has
			      */
	EDGE_DROP_FAULT,     /* the packet could not be changed */
	EDGE_DROP_HOPS,	     /* the last hop; answered: ICMP time exceeded */
	EDGE_DROP_TOO_BIG,   /* for the next hop's MTU; answered, but where it may be fragmented */
	EDGE_DROP_RATE,	     /* an ICMP error was due, and there have been too many */
	EDGE_DROP_REDIRECT,  /* an ICMP redirect about a packet of a flow */
	EDGE_FRAGMENTED,     /* too big, and cut apart: each piece is counted as it comes again */
	EDGE_TO_TC,	     /* left by XDP to tc: another device, no neighbour yet, too big */
	EDGE_REASONS,
};

struct edge_counters {
	__u64 count[EDGE_REASONS];
	__u64 lost; /* events that found no room */
};

/* What the edge counts for a service, each CPU for itself. */
struct service_counters {
	__u64 flows; /* begun */
	__u64 refused;
	__u64 dropped;
	/* Of flows whose records the programs have removed. */
	__u64 sent_packets; /* by clients */
	__u64 sent_bytes;
	__u64 received_packets;
	__u64 received_bytes;
};

/* What clients have sent in packets that need no record, each CPU for itself. */
struct service_packets {
	__u64 packets;
	__u64 bytes;
};

/* What the flows of a service had when the agent removed their records. */
struct service_traffic {
	__u64 sent_packets; /* by clients */
	__u64 sent_bytes;
	__u64 received_packets;
	__u64 received_bytes;
};

/* What somebody who watches is told of a packet: each drop, refusal and new flow. */
struct edge_event {
	__u64 time; /* nanoseconds, CLOCK_MONOTONIC */
	struct tuple packet;
	struct tuple becomes; /* of a new flow */
	__u32 service;	      /* id in `services`; 0: none */
	__u32 device;
	__u32 length; /* from the IP header on */
	__u8 reason;  /* enum edge_reason */
	__u8 xdp;     /* 1: seen by XDP, 0: by tc */
	__u8 tcp_flags;
	__u8 reserved;
};

/* What a dry run tells of the packet that it was for. */
struct explanation {
	struct tuple packet;
	struct tuple becomes;
	struct frontend_key frontend; /* zeros: none has been found */
	struct address next_hop;
	__u32 service; /* id in `services`; 0: none */
	__u32 backend; /* id in `backends`; 0: none */
	__u32 device;  /* that a route leads to; 0: none was looked for */
	__u8 reason;   /* enum edge_reason */
	__u8 done;     /* 1: there is a reason; 0: the packet was left alone without one */
	__u8 class;    /* enum source_class */
	__u8 known;    /* 1: of a flow that has records */
	__u8 state;    /* enum track_state, of such a flow */
	__u8 flags;    /* enum track_flag */
	__u8 mac[6];   /* of the next hop; zeros: not known yet */
	/* enum dsr; of what is put around the packet the ends (with DSR_OPT: those of the packet
	 * itself). Zeros: it has not come to that */
	__u32 dsr;
	struct address outer_source;
	struct address outer_destination;
};
