/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Which connections of a pod go through the proxy. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "lb/address.h"
#include "mesh/maps.h"

/* Set by the loader. Ports are in host byte order. */
const volatile __u16 mesh_outbound_port = 0;
const volatile __u16 mesh_inbound_port = 0;
const volatile __u16 mesh_dns_port = 0; /* of proxies that answer DNS; 0: DNS is left alone */
/* Of pods without a row in `mesh_pods`. */
const volatile __u32 mesh_proxy_uid = 0;
const volatile __u32 mesh_proxy_gid = 0;

/* Linux: include/uapi/linux/in.h */
enum { MESH_TCP = 6, MESH_UDP = 17 };

#define MESH_DNS_PORT	  53

/* A pod's cgroup is at most this deep in the hierarchy. */
#define MESH_CGROUP_DEPTH 16

/* What holds for a pod that the agent does not know, or no longer: all goes to the proxy. */
static __always_inline void mesh_default_pod(struct mesh_pod *pod)
{
	pod->cgroup = 0;
	pod->proxy_uid = mesh_proxy_uid;
	pod->proxy_gid = mesh_proxy_gid;
	pod->flags = MESH_ALL_OUTBOUND | MESH_ALL_INBOUND;
	if (!mesh_proxy_uid) /* applications run as root, too */
		pod->flags |= MESH_PROXY_ANY_USER;
	if (!mesh_proxy_gid)
		pod->flags |= MESH_PROXY_ANY_GROUP;
	pod->reserved = 0;
}

static __always_inline int mesh_find_pod(struct mesh_pod *pod, __u64 id, __u32 kind)
{
	struct mesh_pod_key key = {.id = id, .kind = kind};
	const struct mesh_pod *found = bpf_map_lookup_elem(&mesh_pods, &key);

	if (found)
		*pod = *found;
	return found != 0;
}

static __always_inline void mesh_pod_of(struct mesh_pod *pod, __u64 netns)
{
	if (!mesh_find_pod(pod, netns, MESH_BY_NETNS))
		mesh_default_pod(pod);
}

/* The same in a system call of a process of the pod. */
static __always_inline void mesh_current_pod(struct mesh_pod *pod, __u64 netns)
{
	if (mesh_find_pod(pod, netns, MESH_BY_NETNS))
		return;
	for (int level = 1; level < MESH_CGROUP_DEPTH; level++) {
		__u64 cgroup = bpf_get_current_ancestor_cgroup_id(level);

		if (!cgroup)
			break;
		if (mesh_find_pod(pod, cgroup, MESH_BY_CGROUP))
			return;
	}
	mesh_default_pod(pod);
}

/* Returns an enum mesh_rule; 0: there is none. */
static __always_inline __u32 mesh_port_rule(const struct mesh_pod *pod, __u16 port, __u16 direction)
{
	struct mesh_port key = {.cgroup = pod->cgroup, .port = port, .direction = direction};
	const __u32 *rule = bpf_map_lookup_elem(&mesh_ports, &key);

	return rule ? *rule : 0;
}

static __always_inline __u32 mesh_network_rule(const struct mesh_pod *pod, const struct address *a)
{
	struct mesh_network key = {
		.prefixlen = 64 + 128,
		.cgroup = {pod->cgroup, pod->cgroup >> 32},
		.address = *a,
	};
	const __u32 *rule = bpf_map_lookup_elem(&mesh_networks, &key);

	return rule ? *rule : 0;
}

/* Returns whether the calling process is in the cgroup of the proxy's container or below it. */
static __always_inline int mesh_is_in_container(const struct mesh_pod *pod)
{
	__u64 of_pod = pod->cgroup;
	const __u64 *wanted = bpf_map_lookup_elem(&mesh_proxy_cgroups, &of_pod);

	if (!wanted)
		return 0;
	for (int level = 1; level < MESH_CGROUP_DEPTH; level++) {
		__u64 cgroup = bpf_get_current_ancestor_cgroup_id(level);

		if (!cgroup)
			break;
		if (cgroup == *wanted)
			return 1;
	}
	return 0;
}

/* Returns whether the calling process is the proxy, whose connections are never redirected. */
static __always_inline int mesh_is_proxy(const struct mesh_pod *pod)
{
	__u64 ids = bpf_get_current_uid_gid();

	if (!(pod->flags & MESH_PROXY_ANY_USER) && (__u32)ids == pod->proxy_uid)
		return 1;
	if (!(pod->flags & MESH_PROXY_ANY_GROUP) && (__u32)(ids >> 32) == pod->proxy_gid)
		return 1;
	return pod->flags & MESH_PROXY_CGROUP && mesh_is_in_container(pod);
}

static __always_inline int mesh_is_proxy_port(__u16 port)
{
	return port == mesh_outbound_port || port == mesh_inbound_port;
}

/* The order is Istio's: excluded ports, excluded networks, included ports, included networks. */
static __always_inline int mesh_includes_outbound(const struct mesh_pod *pod,
						  const struct address *a, __u16 port)
{
	__u32 of_port = mesh_port_rule(pod, port, MESH_OUTBOUND);
	__u32 of_network;

	if (of_port == MESH_EXCLUDE)
		return 0;
	of_network = mesh_network_rule(pod, a);
	if (of_network == MESH_EXCLUDE)
		return 0;
	return of_port == MESH_INCLUDE || of_network == MESH_INCLUDE ||
	       (pod->flags & MESH_ALL_OUTBOUND);
}

/* Returns whether a connect() by an application goes to the proxy. The unspecified address stands
 * for this host, like loopback. */
static __always_inline int mesh_takes_outbound(const struct mesh_pod *pod, const struct address *a,
					       __u16 port)
{
	return !address_is_loopback(a) && !address_is_unspecified(a) && !mesh_is_proxy(pod) &&
	       !mesh_is_proxy_port(port) && mesh_includes_outbound(pod, a, port);
}

static __always_inline int mesh_is_name_server(const struct mesh_pod *pod, const struct address *a)
{
	struct mesh_name_server key = {.cgroup = pod->cgroup, .address = *a};

	return bpf_map_lookup_elem(&mesh_name_servers, &key) != 0;
}

/* Returns whether a question for a name server goes to the proxy. Its address is not excluded by a
 * network, and may be one of loopback, as with Istio; its port may be excluded. */
static __always_inline int mesh_takes_dns(const struct mesh_pod *pod, const struct address *a,
					  __u16 port)
{
	return port == MESH_DNS_PORT && mesh_dns_port && (pod->flags & MESH_DNS) &&
	       (pod->flags & MESH_DNS_ALL || mesh_is_name_server(pod, a)) &&
	       mesh_port_rule(pod, port, MESH_OUTBOUND) != MESH_EXCLUDE && !mesh_is_proxy(pod);
}

/* Returns whether a connection is between the pod's own address and itself. The proxy's own ones
 * have this form, unless it binds the socket to a loopback address: Istio's proxy to 127.0.0.6 and
 * ::6 for its connections to the application. */
static __always_inline int mesh_is_own(const struct address *remote, const struct address *local)
{
	return address_equal(remote, local) && !address_is_loopback(local);
}

static __always_inline int mesh_is_node(const struct address *a)
{
	return bpf_map_lookup_elem(&mesh_node_addresses, a) != 0;
}

/* Returns whether an address is ::6, from which Istio's proxy connects to the application. The
 * agent adds it to the pod's lo, so no other host can complete a handshake from it. */
static __always_inline int mesh_is_proxy_source(const struct address *a)
{
	const __u32 *words = address_words_const(a);

	return !words[0] && !words[1] && !words[2] && words[3] == bpf_htonl(6);
}

/* No other host has such an address. */
static __always_inline int mesh_is_local_source(const struct address *a)
{
	return address_is_loopback(a) || mesh_is_proxy_source(a);
}

/* Returns whether a connection from another host goes to the proxy. */
static __always_inline int mesh_takes_inbound(const struct mesh_pod *pod,
					      const struct address *remote,
					      const struct address *local, __u16 port)
{
	__u32 rule;

	if (mesh_is_local_source(remote) || address_equal(remote, local) ||
	    mesh_is_proxy_port(port))
		return 0;
	rule = mesh_port_rule(pod, port, MESH_INBOUND);
	if (rule == MESH_EXCLUDE)
		return 0;
	if ((rule == MESH_PROBE || rule == MESH_PROBE_INCLUDED) && mesh_is_node(remote))
		return 0;
	return rule == MESH_INCLUDE || rule == MESH_PROBE_INCLUDED ||
	       (pod->flags & MESH_ALL_INBOUND);
}
