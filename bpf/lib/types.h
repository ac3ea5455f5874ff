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

struct address {
	__u8 bytes[16];
} __attribute__((aligned(4)));

/* What a client asks for. Port 0 with protocol 0 is every port and protocol
 * of the address that no other key names. */
struct frontend_key {
	struct address address;
	__be16 port;
	__u8 protocol;
	__u8 reserved;
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
};

/* What one class of clients meets: a backend set, that is `count` slots from
 * slot `first`; or, where count is 0, a verdict other than BALANCE. */
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
	__u8 kind;	 /* service.FrontendKind; for people */
	__u8 masquerade; /* one bit for each source class */
	__u8 reserved[6];
};

/* A row never changes while a slot or an affinity entry names it. A row of
 * zeros is free; id 0 is never used. */
struct backend {
	struct address address;
	__be16 port;
	__u8 protocol;
	__u8 local; /* 1: on this node */
	__u32 reserved[3];
};

/* A client of a service with session affinity: an address, or for a socket the
 * cookie of its network namespace and the IP version (byte 0 is 0xff then,
 * which no source address has; RFC 4291 section 2.7). */
struct affinity_key {
	struct address client;
	__u32 service;
};

struct affinity_entry {
	__u32 backend;
	__u32 slot;	 /* where in the set it was last seen: a hint */
	__u32 last_used; /* seconds, CLOCK_MONOTONIC */
	__u32 tag;	 /* of the key: an LRU element is used again for another at any time */
};

/* Kept with a connected socket, and gone with it. This layout never changes:
 * sockets outlive agents. */
struct connected {
	struct address service;
	struct address backend;
	__be16 service_port;
	__be16 backend_port;
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
};
