/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Layouts of the mesh's tables, shared with the agent. See lb/types.h for the conventions. */
#pragma once

#include <linux/types.h>

#include "lb/types.h"

/* Which socket of a redirected connection a mesh_origin belongs to. */
enum mesh_end {
	MESH_CLIENT = 1, /* the application's, which connected */
	MESH_ACCEPTED,	 /* the proxy's, which accept() returns */
	MESH_PROXY,	 /* the proxy's, which connects: it has no other destination */
	MESH_QUERY,	 /* the application's, which asks a name server */
};

/* The destination that a client asked for, stored with both sockets of its connection. */
struct mesh_origin {
	struct address address;
	__be16 port;
	__u8 end; /* enum mesh_end */
	__u8 reserved;
};

/* A connection as one of its sockets sees it, inside one network namespace. */
struct mesh_tuple {
	__u64 netns; /* cookie */
	struct address local, remote;
	__u16 local_port, remote_port; /* host byte order */
	__u32 reserved;
};

/* A connection to the proxy from its SYN until the proxy's socket exists. */
struct mesh_handshake {
	struct mesh_origin origin;
	__u32 joins;  /* messages of the connection may skip TCP */
	__u64 cookie; /* of the client's socket */
	__u64 since;  /* CLOCK_MONOTONIC, ns */
};

/* Where programs accept connections. */
struct mesh_acceptor_key {
	__u64 netns; /* cookie */
	__u16 port;  /* host byte order */
	__u16 reserved[3];
};

/* A socket whose messages may skip TCP. */
struct mesh_member {
	__u64 cookie;
	__u64 sock; /* address of its struct tcp_sock */
};

/* A program of a pod: all processes whose main thread has this name. */
struct mesh_program_key {
	__u64 netns; /* cookie */
	char name[16];
};

/* What a program has done with connections between applications and proxies. */
struct mesh_program {
	__u32 reads;  /* by recvmsg() and the like, of data that took TCP, up to MESH_READS */
	__u8 splices; /* it has read by splice() */
	__u8 unfit; /* it has sent or got urgent data, or has read with flags that only TCP knows */
	__u16 names; /* rows of this pod with names; only in the row without a name */
	__u32 ports; /* rows of this pod in mesh_acceptors; the same */
};

/* Who reads what is sent to a port. */
struct mesh_acceptor {
	struct mesh_program_key program;
	__u32 several; /* not always the same */
	__u32 reserved;
};

/* A socket of a connection between an application and its proxy. */
struct mesh_socket_state {
	struct mesh_program_key program; /* that has connected */
	__u64 sock;			 /* with `joined`: address of its struct tcp_sock */
	__u16 port; /* at which the connection was accepted, host byte order; 0: it was not */
	__u8 joins; /* it joins `mesh_sockets` at the end of its handshake */
	__u8 joined;
	__u8 unread; /* it was closed with messages unread */
	__u8 reserved[3];
};

/* What is known of the reader of such a socket. Sockets keep the program that they have joined
 * with, and that uses this table, so its layout has to stay. */
struct mesh_reader {
	struct mesh_program_key program;
	__u64 sock;  /* address of its struct tcp_sock */
	__u64 stuck; /* when splice() did not find the messages in the queue; CLOCK_MONOTONIC, ns */
	__u8 splices;
	__u8 urgent; /* its peer sends urgent data */
	__u8 reserved[6];
};

/* A question about the queue of a socket. */
struct mesh_unread {
	__u64 sock;   /* address of its struct tcp_sock */
	__u64 cookie; /* of the socket that was there */
};

/* Several sockets listen at a port of the proxy: one for each family, thread
 * and generation of the proxy. With SO_REUSEPORT the kernel balances among all of them, if any is
 * found here. */
enum mesh_size {
	MESH_LISTENERS = 16,
	MESH_PROGRAMS_OF_POD = 64, /* that may be known: processes can change their names */
	MESH_PORTS_OF_POD = 256,   /* whose programs may be known */
};

struct mesh_listener_key {
	__u64 netns;	/* cookie */
	__u32 place;	/* below MESH_LISTENERS */
	__u32 outbound; /* 1: for connections of applications */
};

/* By what a program finds the pod that it runs for: the cookie of its network namespace or, while
 * the agent does not know that, the id of its cgroup. */
enum mesh_pod_kind { MESH_BY_NETNS = 1, MESH_BY_CGROUP };

struct mesh_pod_key {
	__u64 id;
	__u32 kind; /* enum mesh_pod_kind */
	__u32 reserved;
};

enum mesh_pod_flags {
	MESH_ALL_OUTBOUND = 1, /* what no row includes or excludes goes to the proxy */
	MESH_ALL_INBOUND = 2,
	MESH_DNS = 4, /* the proxy answers DNS, for servers with a row in mesh_name_servers */
	/* What tells the proxy from applications: its user and group unless these flags are set,
	 * and its cgroup if that is known. */
	MESH_PROXY_ANY_USER = 8,
	MESH_PROXY_ANY_GROUP = 16,
	MESH_PROXY_CGROUP = 32,	     /* the pod has a row in mesh_proxy_cgroups */
	MESH_PROXY_UNKNOWN = 64,     /* nothing does: what would go to the proxy is refused */
	MESH_HAS_DEVICES = 128,	     /* the pod has rows in mesh_devices */
	MESH_ROUTES_BY_SOURCE = 256, /* routes of its namespace depend on the source, too */
	MESH_DNS_ALL = 512,	     /* with MESH_DNS: for all servers */
};

/* What holds for a pod. */
struct mesh_pod {
	__u64 cgroup; /* id, also of the pod's rows in the tables of ports and networks */
	__u32 proxy_uid, proxy_gid;
	__u32 flags; /* enum mesh_pod_flags */
	__u32 reserved;
};

enum mesh_rule {
	MESH_EXCLUDE = 1, /* not to the proxy */
	MESH_INCLUDE,
	MESH_PROBE, /* not to the proxy if it comes from an address of the node, else as without a
		       rule */
	MESH_PROBE_INCLUDED, /* the same, else to the proxy */
};

enum mesh_direction { MESH_OUTBOUND, MESH_INBOUND };

/* A port of a pod with a mesh_rule. */
struct mesh_port {
	__u64 cgroup;
	__u16 port; /* host byte order */
	__u16 direction;
	__u32 reserved;
};

/* A network with a mesh_rule for connections of a pod. */
struct mesh_network {
	__u32 prefixlen; /* 64, and that of the address */
	__u32 cgroup[2]; /* two words, because a key of this kind of table has no padding */
	struct address address;
};

/* A device of a pod's network namespace with a mesh_rule. */
struct mesh_device {
	__u64 cgroup;
	__u32 index;
	__u32 reserved;
};

/* A network with a mesh_rule, by the device by which packets of a pod to it leave. */
struct mesh_route {
	__u32 prefixlen;       /* 64 + 128, and that of the destination */
	__u32 cgroup[2];       /* two words, as in mesh_network */
	struct address source; /* with MESH_ROUTES_BY_SOURCE that of the socket; else zero */
	struct address destination;
};

/* A name server of a pod, whose answers come from the proxy. */
struct mesh_name_server {
	__u64 cgroup;
	struct address address;
};

/* A process that has acted as a proxy. Key: the address of its struct task_struct. */
struct mesh_proxy {
	__u64 started; /* task_struct.start_time: the address may be reused */
};

/* Connections of a pod's proxy that would have come back to it. Key: the cookie of its network
 * namespace. */
struct mesh_loop_count {
	__u64 count;
	__u64 last; /* CLOCK_MONOTONIC, ns */
};

struct mesh_counters {
	__u64 outbound;	  /* connect() calls redirected to the proxy */
	__u64 unnamed;	  /* of these: no room to tell the proxy the destination */
	__u64 dns;	  /* datagrams and connections for name servers, redirected to the proxy */
	__u64 inbound;	  /* SYNs from outside redirected to the proxy */
	__u64 refused;	  /* SYNs from outside refused, because the proxy does not listen */
	__u64 listeners;  /* of the proxy that had no place in the table */
	__u64 joined;	  /* sockets whose messages may skip TCP */
	__u64 not_joined; /* sockets for which there was no room */
	__u64 foreign;	  /* sockets that were in another program's sockmap */
	__u64 skipped;	  /* messages that skipped TCP */
	__u64 by_tcp;	  /* messages of such sockets that took TCP */
	__u64 stuck;	  /* sockets whose reader missed messages by splice() */
	__u64 loops;   /* connections and datagrams of the proxy that would have come back to it */
	__u64 unknown; /* connections and datagrams refused, because nothing tells the proxy */
};
