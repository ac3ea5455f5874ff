/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Reasons, counters and events of the edge, shared by the programs and the agent. */
#pragma once

#include "lb/types.h"
#include "packet/types.h"

/* Why a packet was handled as it was. The agent reads the names from the BTF
 * (bpf.ReasonNames). */
enum edge_reason {
	EDGE_NOT_SERVICE,     /* neither to a Service nor of a flow */
	EDGE_ESTABLISHED,     /* of a flow */
	EDGE_REPLY,	      /* of a flow, from the backend */
	EDGE_NEW,	      /* first packet of a flow */
	EDGE_RECOVERED,	      /* of a flow that had lost an entry */
	EDGE_UNTRACKED,	      /* to the backend of its slot, without a conntrack entry (DSR) */
	EDGE_ICMP,	      /* ICMP error about a packet of a flow */
	EDGE_REJECTED,	      /* replied with RST or ICMP port unreachable */
	EDGE_ECHO,	      /* replied to an ICMP echo request */
	EDGE_DROP_POLICY,     /* traffic policy Local, and no local endpoint */
	EDGE_DROP_SOURCE,     /* not in loadBalancerSourceRanges */
	EDGE_DROP_NO_SERVICE, /* an address of a ServiceCIDR that no Service has */
	EDGE_DROP_NO_BACKEND, /* no backend in a slot: the tables are damaged */
	EDGE_DROP_NO_ROUTE,   /* the node has no route to the backend or client */
	EDGE_DROP_FORWARDING, /* forwarding is off for the device by which the packet came (sysctl)
			       */
	EDGE_DROP_NO_ADDRESS, /* the device has no address for SNAT */
	EDGE_DROP_NO_PORT,    /* no free SNAT port; SCTP: the client's own port is in use */
	EDGE_DROP_SCTP_PORT,  /* SCTP, and the backend's port differs from the frontend's */
	EDGE_DROP_INSERT_FAILED, /* the conntrack entry could not be inserted */
	EDGE_DROP_SPOOFED, /* encapsulated for a backend of this node, but not by a balancer */
	EDGE_DROP_BACKEND_NOT_LOCAL, /* encapsulated for a backend that the Service does not have on
					this node */
	EDGE_DROP_FRAGMENT, /* a fragment before its first one; dropped if it may be for a Service
			     */
	/* TCP that neither opens a connection nor belongs to a known one: RST, FIN, SYN+ACK */
	EDGE_DROP_INVALID,
	EDGE_MALFORMED, /* inconsistent headers, flags of TCP that do not go together, a wrong
			   checksum of the IPv4 header or of a flow's first packet, or a source
			   address that no packet may have */
	EDGE_DROP_REWRITE_FAILED, /* the packet could not be rewritten */
	EDGE_TTL_EXCEEDED,	  /* TTL or hop limit used up; replied with ICMP time exceeded */
	EDGE_DROP_TOO_BIG, /* exceeds the next hop's MTU; replied with an ICMP error, unless it may
			      be fragmented */
	EDGE_ICMP_RATE_LIMITED, /* an ICMP error was due, but exceeded the rate limit */
	EDGE_DROP_REDIRECT,	/* an ICMP redirect about a packet of a flow */
	EDGE_FRAGMENTED,	/* too big and fragmented here; each fragment is counted again */
	EDGE_TO_TC, /* passed by XDP to tc: another device, unresolved neighbour, or too big */
	EDGE_KERNEL_FLOW,   /* of a flow in the kernel's conntrack: passed */
	EDGE_KERNEL_SOCKET, /* to a socket of the node that is connected to the sender: passed */
	/* The stack does not accept the source at the device: reverse path filtering (rp_filter),
	 * or an address of the node itself. */
	EDGE_DROP_REVERSE_PATH,
	EDGE_DROP_XFRM, /* an XFRM policy concerns the flow, which would pass in clear */
	/* A backend of this node acknowledges another connection from the client's port than the
	 * one that the client opens by a Service. */
	EDGE_DROP_OTHER_CONNECTION,
	EDGE_DROP_SCOPE, /* to a backend, with a source that may not leave its link; replied with an
			    ICMP error */
	EDGE_REASONS,
};

struct edge_counters {
	__u64 count[EDGE_REASONS];
	__u64 lost; /* events that did not fit into the ring buffer */
};

/* Counters of a service, per CPU. */
struct service_counters {
	__u64 flows; /* new flows */
	__u64 refused;
	__u64 dropped;
	/* Traffic of flows whose entries the programs have deleted. */
	__u64 sent_packets; /* by clients */
	__u64 sent_bytes;
	__u64 received_packets;
	__u64 received_bytes;
};

/* Packets that clients have sent without a conntrack entry, per CPU. */
struct service_packets {
	__u64 packets;
	__u64 bytes;
};

/* Traffic of a service's flows whose entries the agent has deleted. */
struct service_traffic {
	__u64 sent_packets; /* by clients */
	__u64 sent_bytes;
	__u64 received_packets;
	__u64 received_bytes;
};

/* A dropped or rejected packet, or a new flow. */
struct edge_event {
	__u64 time; /* nanoseconds, CLOCK_MONOTONIC */
	struct tuple packet;
	struct tuple xlate; /* after translation, of a new flow */
	__u32 service;	    /* ID in `services`; 0: none */
	__u32 device;
	__u32 length; /* from the IP header on, in bytes */
	__u8 reason;  /* enum edge_reason */
	__u8 xdp;     /* 1: seen by XDP, 0: by tc */
	__u8 tcp_flags;
	__u8 reserved;
};

/* A backend on another node that a client's packet did not reach, and why. */
struct loss_key {
	struct address backend;
	__u32 reason; /* enum edge_reason */
};

struct loss {
	__u64 packets;
	struct address asked; /* of the last packet's route lookup: the backend, or with DSR where
				 the outer header leads */
	__u32 device;	      /* output device of the last packet's route; 0: there is no route */
	__u32 reserved;
};

/* The result of a dry run. */
struct explanation {
	struct tuple packet;
	struct tuple xlate;
	struct frontend_key frontend; /* zeros: none found */
	struct address next_hop;
	__u32 service; /* ID in `services`; 0: none */
	__u32 backend; /* ID in `backends`; 0: none */
	__u32 device;  /* output device of the route; 0: no route lookup */
	__u8 reason;   /* enum edge_reason */
	__u8 done;     /* 1: `reason` is set; 0: passed without a reason */
	__u8 class;    /* enum source_class */
	__u8 known;    /* 1: the flow has conntrack entries */
	__u8 state;    /* enum ct_state, if `known` is 1 */
	__u8 flags;    /* enum ct_flag */
	__u8 mac[6];   /* of the next hop; zeros: unresolved */
	/* enum dsr, and the outer addresses (with DSR_OPT: the packet's own). Zeros: not reached.
	 */
	__u32 dsr;
	struct address outer_source;
	struct address outer_destination;
};
