/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Who reads what applications and proxies send each other. A socket in `mesh_sockets` has one queue
 * for messages that skip TCP and for what TCP receives. recvmsg() and the like read it; splice()
 * does not find it, and flags as MSG_WAITALL have no effect there. So a socket joins only if its
 * program has read MESH_READS times from other connections, and never in such a way.
 *
 * The tracepoint of tcp_rcv_space_adjust() sees each read. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "mesh/kernel.h"
#include "mesh/maps.h"
#include "mesh/program.h"
#include "mesh/syscall.h"

/* The sockets of connections between applications and proxies. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct mesh_socket_state);
} mesh_socket_states SEC(".maps");

/* Readers by the cookies of their sockets, those of `mesh_sockets`. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, struct mesh_reader);
} mesh_readers SEC(".maps");

/* splice() has found nothing in a socket that has joined. */
static __always_inline void mesh_splices_joined(const struct tcp_sock *tcp, __u64 cookie,
						const struct mesh_program_key *key)
{
	struct mesh_reader *reader = bpf_map_lookup_elem(&mesh_readers, &cookie);

	if (!reader)
		return;
	reader->splices = 1;
	reader->program = *key;
	if (!reader->stuck && mesh_has_messages(tcp)) {
		reader->stuck = bpf_ktime_get_ns();
		MESH_COUNT(stuck);
	}
}

/* A process reads from a TCP socket. Most are not of such connections. */
static __always_inline void mesh_reads_tcp(struct sock *sk)
{
	struct mesh_socket_state *state = bpf_sk_storage_get(&mesh_socket_states, sk, 0, 0);
	const struct tcp_sock *tcp = (void *)sk;
	struct mesh_program_key key;
	struct mesh_program *program;
	__u64 flags;
	__u32 call;

	if (!state)
		return;
	call = mesh_current_call(&flags);
	if (!(call & (MESH_SPLICES | MESH_READS_DATA)) || (state->joined && !(call & MESH_SPLICES)))
		return;
	mesh_current_program(&key, BPF_CORE_READ(sk, __sk_common.skc_net.net, net_cookie));
	if (state->joined)
		mesh_splices_joined(tcp, sk->__sk_common.skc_cookie.counter, &key);
	program = mesh_program_row(&key);
	if (!program)
		return;
	if (call & MESH_SPLICES)
		program->splices = 1;
	else if (flags & (MESH_MSG_WAITALL | MESH_MSG_TRUNC) || BPF_CORE_READ(tcp, urg_data))
		program->unfit = 1;
	else if (program->reads < MESH_READS)
		program->reads++;
	if (state->port && !state->joined)
		mesh_note_acceptor(&key, state->port);
}
