/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Which connections of a pod go through the proxy. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "lb/address.h"
#include "mesh/maps.h"

/* Set by the loader. Ports are in host byte order. */
const volatile __u16 mesh_outbound_port = 0;
const volatile __u16 mesh_inbound_port = 0;
const volatile __u32 mesh_proxy_uid = 0;
const volatile __u32 mesh_proxy_gid = 0;

/* Linux: include/uapi/linux/in.h */
#define MESH_TCP 6

static __always_inline int mesh_excludes_port(__u16 port, __u16 direction)
{
	struct mesh_port key = {.port = port, .direction = direction};

	return port == mesh_outbound_port || port == mesh_inbound_port ||
	       bpf_map_lookup_elem(&mesh_excluded_ports, &key);
}

static __always_inline int mesh_excludes_network(const struct address *a)
{
	struct network_key key = {.prefixlen = 128, .address = *a};

	return bpf_map_lookup_elem(&mesh_excluded_networks, &key) != 0;
}

/* Returns whether the calling process is the proxy, whose connections are never redirected. */
static __always_inline int mesh_is_proxy(void)
{
	__u64 ids = bpf_get_current_uid_gid();

	return (__u32)ids == mesh_proxy_uid || (__u32)(ids >> 32) == mesh_proxy_gid;
}

/* Returns whether a connect() by an application goes to the proxy. The unspecified address stands
 * for this host, like loopback. */
static __always_inline int mesh_takes_outbound(const struct address *a, __u16 port)
{
	return !address_is_loopback(a) && !address_is_unspecified(a) && !mesh_is_proxy() &&
	       !mesh_excludes_port(port, MESH_OUTBOUND) && !mesh_excludes_network(a);
}

/* Returns whether a connection from another host goes to the proxy. */
static __always_inline int mesh_takes_inbound(const struct address *remote,
					      const struct address *local, __u16 port)
{
	return !address_is_loopback(remote) && !address_equal(remote, local) &&
	       !mesh_excludes_port(port, MESH_INBOUND);
}
