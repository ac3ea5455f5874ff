/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Socket storage, counters and events of the socket hooks, shared by the programs and the agent. */
#pragma once

#include <linux/types.h>

#include "lb/types.h"

/* Stored with a connected UDP socket and freed with it; earlier versions did so for TCP. This
 * layout never changes: sockets outlive agents. */
struct connected {
	struct address service;
	struct address backend;
	__be16 service_port;
	__be16 backend_port;
};

/* The phase of a TCP connection for its statistics (sock/stats.h). */
enum connection_phase {
	CONNECTION_NOT_COUNTED, /* or not any more */
	CONNECTION_BEGINS,	/* connect() was called; not counted yet */
	CONNECTION_STARTED,
	CONNECTION_ESTABLISHED,
};

/* Stored with a TCP socket and freed with it. This layout never changes: sockets outlive agents. */
struct connection {
	struct connected peer;
	__u32 service;	     /* ID in `services` */
	__u64 service_birth; /* of the rows in which the connection is counted */
	__u64 backend_birth; /* 0: not counted for the backend */
	enum connection_phase phase;
	__u32 reserved;
};

/* A flow of an unconnected UDP socket: the Service it has sent to, and the backend. Its datagrams
 * to that Service go to one backend, and replies from there get the Service's address. If both are
 * equal, it is a direct flow to an address that is also a backend of another flow. A free entry is
 * all zeros. */
struct udp_flow {
	struct address service;
	struct address backend;
	__be16 service_port;
	__be16 backend_port;
	__u32 slot;	      /* position of the backend in the set when last seen: a hint */
	__u32 unanswered;     /* requests without a reply */
	__u32 oldest_request; /* struct udp_flows.clock at the first of them, approximately */
	__u32 latest_request; /* struct udp_flows.clock at the last request */
	__u32 latest_second;  /* of the last request, CLOCK_MONOTONIC */
};

/* Stored with an unconnected UDP socket and freed with it. Few sockets use more Services than fit;
 * those have a struct udp_flows_overflow, too. */
#define UDP_FLOWS 4
struct udp_flows {
	__u32 clock;	/* number of requests so far */
	__u32 overflow; /* entries of struct udp_flows_overflow in use; 0: it does not exist */
	struct udp_flow flow[UDP_FLOWS];
};

/* Limited by the socket storage that the kernel grants one socket (net.core.optmem_max was 20 KiB
 * before Linux 6.7). */
#define UDP_FLOWS_OVERFLOW 256
struct udp_flows_overflow {
	struct udp_flow flow[UDP_FLOWS_OVERFLOW];
};

/* A port on which this node serves a NodePort or HostPort, per IP version. */
struct reserved_port_key {
	__be16 port;
	__u8 protocol;
	__u8 ip_version; /* 4 or 6 */
};

/* A bind() to port 0 in progress, kept until the kernel has chosen a port. */
struct bind_pending {
	__u16 pending;
	__u16 ipv6_only;
};

/* A socket whose backend no longer serves, as reported by the garbage collection of sockets.
 * Addresses as the socket has them. */
struct stale_socket {
	__u64 cookie;
	struct address local;
	struct address backend;
	struct address service;
	__be16 local_port;
	__be16 backend_port;
	__be16 service_port;
	__u8 protocol;
	__u8 destroyed; /* 1: destroyed by the program; 0: left to the agent */
	__u32 family;
	__u32 reserved;
};

/* The reason for the result of a connect(2). */
enum connect_reason {
	CONNECT_DECISION,	/* the frontend's decision for the caller's class */
	CONNECT_NO_FRONTEND,	/* no Service has the address and port; in a ServiceCIDR: R21 */
	CONNECT_OPTED_OUT,	/* the pod has opted out */
	CONNECT_UDP_OTHER_PORT, /* UDP to a port that the Service does not have */
	CONNECT_SOURCE,		/* loadBalancerSourceRanges (R25) */
	CONNECT_SOURCE_UNKNOWN, /* likewise, and the socket has no source address yet */
	CONNECT_NO_BACKEND,	/* the tables are damaged */
	CONNECT_PROTOCOL,	/* served per packet */
	CONNECT_MASQUERADED,	/* the packets of pods are masqueraded */
};

/* A connect(2) to explain, and, from `verdict` on, the explanation. */
struct connect_explanation {
	struct address source;	    /* that the socket is bound to, or unspecified */
	struct address destination; /* becomes the backend if `verdict` is BALANCE */
	__u64 netns_cookie;
	__be16 port; /* of the destination */
	__u8 protocol;
	__u8 verdict; /* enum verdict */
	__u8 reason;  /* enum connect_reason */
	__u8 class;   /* enum source_class */
	__u8 done;    /* 1: the call has been looked at */
	__u8 reserved[5];
	struct frontend_key frontend; /* zeros: none found */
	__u32 backend;		      /* ID in `backends`; 0: none */
	__u32 affinity;		      /* the backend of session affinity; 0: none, or expired */
};

/* Counters of the socket hooks, per CPU. */
struct socket_counters {
	__u64 connect_pass;	  /* not a Service, or left to the packet path */
	__u64 connect_balance;	  /* redirected to a backend */
	__u64 connect_reject;	  /* ECONNREFUSED */
	__u64 connect_drop;	  /* EPERM */
	__u64 connect_no_backend; /* no backend in a slot: the tables are damaged */
	__u64 affinity_hit;	  /* of the balanced: by an affinity entry */
	__u64 affinity_failed;	  /* an affinity entry could not be stored */
	__u64 record_failed;	  /* a socket's record could not be stored: getpeername returns the
				     backend */
	__u64 peer_name;	  /* getpeername returned the Service's address */
	__u64 datagram_pass; /* datagram_*: as connect_*, per datagram of unconnected sockets */
	__u64 datagram_balance;
	__u64 datagram_reject;
	__u64 datagram_drop;
	__u64 datagram_no_backend;
	__u64 datagram_name; /* recvmsg returned the Service's address */
	__u64 flow_new;	   /* a socket's first datagram to a Service, or to another backend of it */
	__u64 flow_stale;  /* flows removed because the tables no longer confirm them */
	__u64 flow_failed; /* a flow could not be stored: the next datagram may go to another
			      backend */
	__u64 flow_evicted; /* flows evicted: a socket uses more Services than fit */
	__u64 opted_out;    /* calls of pods that have opted out */
	__u64 bind_refused; /* EADDRINUSE */
};

/* The histogram of the times of handshakes: each octave has RTT_PARTS buckets of equal width. The
 * first octave begins at 2^RTT_FIRST_OCTAVE microseconds, and its first bucket has all shorter
 * times; the last bucket has all longer ones (from 0.92 s on). */
enum rtt_histogram {
	RTT_FIRST_OCTAVE = 4,
	RTT_OCTAVES = 16,
	RTT_PARTS = 4,
	RTT_BUCKETS = RTT_OCTAVES * RTT_PARTS,
};

/* What the TCP connections of one Service or backend did. All numbers only grow: open are
 * `established - closed`, and connecting `started - established - failed`. A reader copies the
 * fields in this order, so it never sees an end without its beginning. */
struct socket_stats {
	__u64 birth; /* CLOCK_MONOTONIC of the first connection: distinguishes rows of one key */
	__u64 closed;
	__u64 failed; /* reset, timed out or given up before they were established */
	__u64 established;
	__u64 started;	      /* a SYN was sent */
	__u64 sent_bytes;     /* payload, without retransmissions; of connections that have ended */
	__u64 received_bytes; /* likewise */
	__u64 retransmits;    /* segments, SYN included; of connections that have ended */
	__u64 rtt_sum;	      /* microseconds */
	__u64 rtt[RTT_BUCKETS];
};

/* Key of `backend_sockets`: a Service, which its ID and the birth of its row identify, and a
 * backend. */
struct backend_sockets_key {
	__u64 service_birth;
	struct address address;
	__u32 service;
	__be16 port;
	__u16 reserved;
};
