/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What the programs and the agent both know. bpf2go turns these structures
 * into the Go types of internal/datapath; nothing is typed twice.
 *
 * Addresses are 16 bytes in network byte order, IPv4 mapped into them
 * (::ffff:a.b.c.d, RFC 4291 section 2.5.5.2): one path for both families.
 * Ports are in network byte order. All other numbers are in host byte order.
 * Structures have no hidden padding: they are compared and hashed as bytes.
 */
#pragma once

#include <linux/types.h>

#include "set_table_types.h"

struct address {
	__u8 bytes[16];
} __attribute__((aligned(4)));

/* What a client asks for. Port 0 with protocol 0 is every port and protocol
 * of the address that no other key names; port 0 with ICMP's or ICMPv6's number
 * are its echo requests. */
struct frontend_key {
	struct address address;
	__be16 port;
	__u8 protocol;
	__u8 reserved;
};

/* Which field of an object asked for a frontend. Matches service.FrontendKind. */
enum frontend_kind {
	FRONTEND_CLUSTER_IP = 1,
	FRONTEND_CLUSTER_IP_OTHER,
	FRONTEND_NODE_PORT,
	FRONTEND_LOAD_BALANCER,
	FRONTEND_EXTERNAL_IP,
	FRONTEND_HOST_PORT,
	FRONTEND_ECHO, /* of a load balancer's or external IP */
};

/* From where a client asks. Matches service.SourceClass. */
enum source_class {
	FROM_POD,
	FROM_NODE,
	FROM_OUTSIDE,
	SOURCE_CLASSES,
};

/* Matches service.Verdict. */
enum verdict {
	VERDICT_PASS,
	VERDICT_REJECT,
	VERDICT_DROP,
	VERDICT_BALANCE,
	VERDICT_ANSWER, /* an ICMP echo request */
};

/* SO_MARK of the agent's own connections, which are health checks and those to the API
 * server: they mean the address that they name, also where that is a Service's. The bits
 * are none of those that Kubernetes, Calico and Tailscale use. */
enum socket_mark {
	MARK_AGENT = 0x101e,
};

/* What the edge has put around packets bears this on its way from tc ingress to egress; marks
 * do not outlive a packet's way out of a pod. */
#define MARK_ENCAPSULATED 0x111e

/* What one class of clients meets: a backend set, that is `count` slots from
 * slot `first`; or, where count is 0, a verdict other than BALANCE.
 *
 * The slots hold the members in the order of their addresses and ports, so that programs find
 * one by a binary search (members.h).
 *
 * A Maglev table (FRONTEND_MAGLEV) has thousands of slots. Who looks for a backend in the
 * set takes the list of its members, each once and in that order, that stands before the table:
 * slot first - 1 says how many there are, and they end with slot first - 2. */
struct decision {
	union {
		__u32 first;
		enum verdict verdict;
	};
	__u32 count;
};

/* One cache line. A row never changes while the index can lead to it: an
 * update fills another row and then turns the index, in one step. */
struct frontend {
	struct frontend_key key; /* proves that the index led to the right row */
	__u32 service;		 /* id in `services` */
	__u32 affinity_seconds;	 /* 0: none */
	__u32 source_set;	 /* id in `source_ranges`; 0: any source is admitted */
	struct decision decisions[SOURCE_CLASSES];
	__u8 kind;   /* enum frontend_kind */
	__u8 dsr;    /* enum dsr: how packets reach a backend of another node */
	__u16 flags; /* enum frontend_flag */
	/* The first slot of a list of backends, in the order of a set, that flows keep, though they
	 * are not in each of the sets above: those of UDP while they serve (R29), those of
	 * connections without a record while they are there (R30). The slot before it says how many
	 * they are; 0: there is none. With FRONTEND_HISTORY there is one, and before that number
	 * stand, in this order, a word for each slot of an earlier table (enum history_word), how
	 * many these are, and the frontend's enum dsr at that time. */
	__u32 kept_first;
};

enum frontend_flag {
	FRONTEND_MASQUERADE = 1,   /* shifted left by the source class */
	FRONTEND_ONE_ADDRESS = 8,  /* 127.0.0.1 alone, where 127.0.0.0/8 is meant otherwise */
	FRONTEND_OWN_ADDRESS = 16, /* this node's, where `source_set` is not 0 */
	FRONTEND_MAGLEV = 32,	   /* the sets of `decisions` are Maglev tables */
	/* Packets of clients outside go to backends of other nodes without a record of the flow,
	 * unless their slot of the table is contested. */
	FRONTEND_UNTRACKED = 64,
	/* Slots are contested: flows without records may be at other backends than the table has.
	 */
	FRONTEND_HISTORY = 128,
};

/* What this node opens of what balancers have sent for its backends. */
enum dsr_accepted {
	DSR_ACCEPT_TUNNELS = 1, /* IPIP and Geneve */
	DSR_ACCEPT_OPTION = 2,	/* of IP: a Service here has DSR_OPT */
};

/* What the edge has to know before it looks an untracked frontend up, or into a packet. */
struct untracked_ends {
	/* A bit for the address and port of each frontend with FRONTEND_UNTRACKED or
	 * FRONTEND_HISTORY: that of end_hash's upper nine. One that is set in vain costs a look-up.
	 */
	__u64 bits[8];
	/* Another number after the index has been turned, for whatever frontend: what programs
	 * remember of it from before is worth nothing then. */
	__u32 turned;
	enum dsr_accepted accepted; /* one or both */
};

/* Who may have sent an outer packet, in `balancers`: the longest prefix counts. */
enum balancer {
	BALANCER = 1,
	BALANCER_OWN, /* this node itself: nobody sends to it with its own address */
};

/* What is remembered of a slot: the backend that flows without a record have, 0 for that of
 * the table; and whether there may be such flows, or records of other backends. Where the table
 * has another size by now, or the frontend is not untracked any more, all slots are contested. */
enum history_word {
	HISTORY_BACKEND = 0x7fffffff,
	HISTORY_CONTESTED = 0x80000000,
};

/* How a packet of a client outside gets to a backend of another node with the client's
 * address, so that the answer goes straight to the client (direct server return). dsr.h has
 * what they look like. */
enum dsr {
	DSR_NONE, /* it does not: in this node's name (SNAT) */
	DSR_IPIP,
	DSR_GENEVE,
	DSR_OPT,
};

/* One cache line. A row never changes while a slot or an affinity entry names it. A row
 * of zeros is free; id 0 is never used. */
struct backend {
	struct address address;
	__be16 port;
	__u8 protocol;
	__u8 local;	     /* 1: on this node */
	struct address node; /* of its node; its own where no node is known */
	__u32 reserved[7];
};

/* A client of a service with session affinity: an address, or for a socket the
 * cookie of its network namespace and the IP version (byte 0 is 0xff then,
 * which no source address has; RFC 4291 section 2.7). */
struct affinity_key {
	struct address client;
	__u32 service;
};

/* Half a cache line. */
struct affinity_entry {
	struct affinity_key key;
	__u32 backend;
	__u32 slot;	 /* where among the members it was last seen: a hint */
	__u32 last_used; /* seconds, CLOCK_MONOTONIC */
};

struct affinity_set {
	struct set_head head;
	struct affinity_entry entries[SET_PLACES];
	__u64 reserved[4];
};

_Static_assert(sizeof(struct affinity_set) % 64 == 0, "the tags of each set are one cache line");

/* Kept with a connected socket, and gone with it. This layout never changes:
 * sockets outlive agents. */
struct connected {
	struct address service;
	struct address backend;
	__be16 service_port;
	__be16 backend_port;
};

/* What an unconnected UDP socket asked a Service, and of whom: its datagrams to
 * that Service go to one backend, and what comes from there has the Service's
 * address. Where both are the same it is a plain address that is also some
 * Service's backend for this socket. An entry of zeros is free. */
struct flow {
	struct address service;
	struct address backend;
	__be16 service_port;
	__be16 backend_port;
	__u32 slot;    /* where in the set the backend was last seen: a hint */
	__u32 waiting; /* questions without an answer */
	__u32 asked;   /* struct flows.clock at the first of them, or about then */
	__u32 used;    /* struct flows.clock at the last question */
	__u32 second;  /* of the last question, CLOCK_MONOTONIC */
};

/* Kept with an unconnected UDP socket, and gone with it. Few sockets ask more
 * Services than this; those that do have a struct more_flows, too. */
#define FLOWS 4
struct flows {
	__u32 clock; /* questions so far */
	__u32 more;  /* entries of struct more_flows that have been used; 0: there is none */
	struct flow flow[FLOWS];
};

/* As much as the kernel grants one socket (net.core.optmem_max was 20 KiB until
 * Linux 6.7). */
#define MORE_FLOWS 256
struct more_flows {
	struct flow flow[MORE_FLOWS];
};

/* A port on which this node serves a NodePort or HostPort of one IP version. */
struct reserved_port_key {
	__be16 port;
	__u8 protocol;
	__u8 ip_version; /* 4 or 6 */
};

/* What a bind() to port 0 leaves for the moment at which the kernel has chosen
 * a port. */
struct unnamed_port {
	__u16 pending;
	__u16 ipv6_only;
};

/* A socket that is to be ended, and why: what the sweep tells. Addresses as the
 * socket has them. */
struct stale_socket {
	__u64 cookie;
	struct address local;
	struct address backend;
	struct address service;
	__be16 local_port;
	__be16 backend_port;
	__be16 service_port;
	__u8 protocol;
	__u8 ended; /* 1: the program has ended it, 0: to be done */
	__u32 family;
	__u32 reserved;
};

/* Longest-prefix keys: prefixlen counts the bits of all that follows it. */
struct source_range_key {
	__u32 prefixlen;
	__u32 source_set;
	struct address address;
};

struct network_key {
	__u32 prefixlen;
	struct address address;
};

/* What is known of a network. */
enum network {
	NETWORK_SERVICE = 1, /* a ServiceCIDR: what no frontend has is dropped */
	NETWORK_POD,	     /* of pods, on any node: these are no clients from outside */
	NETWORK_OWN,	     /* an address of this node inside a ServiceCIDR: its stack has it */
};

/* The name behind a service id: for people, and to find the ids again after a
 * restart. Strings end with a zero byte. */
struct service_name {
	__u8 owner_kind; /* 0: Service, 1: Pod (its hostPorts) */
	__u8 protocol;
	__u8 namespace[64];
	__u8 name[254];
	__u8 port[64];
};

/* What the socket hooks count, each CPU for itself. */
struct socket_counters {
	__u64 connect_pass;    /* not a service, or left to the packet path */
	__u64 connect_balance; /* sent to a backend */
	__u64 connect_reject;  /* ECONNREFUSED */
	__u64 connect_drop;    /* EPERM */
	__u64 connect_fault;   /* no backend behind a slot: the tables are damaged */
	__u64 affinity_hit;    /* of the balanced: sent where the client was before */
	__u64 affinity_failed; /* an affinity entry could not be stored */
	__u64 record_failed; /* a socket's record could not be stored: getpeername shows the backend
			      */
	__u64 peer_name;     /* getpeername answered with the service address */
	__u64 datagram_pass; /* as connect_pass to connect_fault, for each datagram of a socket
				that is not connected */
	__u64 datagram_balance;
	__u64 datagram_reject;
	__u64 datagram_drop;
	__u64 datagram_fault;
	__u64 datagram_name; /* recvmsg answered with the service address */
	__u64 flow_new;	     /* a socket asked a service for the first time, or another backend */
	__u64 flow_stale;    /* records removed, since the tables no longer bear them out */
	__u64 flow_failed;   /* a flow's record could not be stored: the next datagram may go
				elsewhere */
	__u64 flow_evicted;  /* records that made room: a socket asks more services than fit */
	__u64 opted_out;     /* calls of pods that have opted out */
	__u64 bind_refused;  /* EADDRINUSE */
};
