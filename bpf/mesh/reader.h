/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Who reads messages that skip TCP. splice() reads only what TCP has received: it does not find the
 * messages in the queue of a socket, and would overtake them. So messages skip TCP only to a socket
 * that was read by recvmsg() or the like, of a program that has done so MESH_READS times and has
 * never used splice().
 *
 * The tracepoint of tcp_rcv_space_adjust() tells both apart. tcp_recvmsg() calls it while the
 * buffer that it has read is still in the receive queue. tcp_read_sock(), which splice() uses,
 * first removes each buffer that it has read to the end, and also calls it if it has found nothing.
 */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "mesh/kernel.h"
#include "mesh/maps.h"

/* The number of reads after which a program is known. */
#define MESH_READS 16

/* Readers by the cookies of their sockets, those of `mesh_sockets`. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, struct mesh_reader);
} mesh_readers SEC(".maps");

/* The agent deletes the rows of former pods. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct mesh_program_key);
	__type(value, struct mesh_program);
} mesh_pod_programs SEC(".maps");

/* The program of the calling process. */
static __always_inline void mesh_current_program(struct mesh_program_key *key, __u64 netns)
{
	const struct task_struct *leader =
		BPF_CORE_READ((struct task_struct *)bpf_get_current_task(), group_leader);

	__builtin_memset(key, 0, sizeof(*key));
	key->netns = netns;
	bpf_core_read_str(key->name, sizeof(key->name), &leader->comm);
}

static __always_inline struct mesh_program *
mesh_make_program_row(const struct mesh_program_key *key)
{
	struct mesh_program none = {};

	bpf_map_update_elem(&mesh_pod_programs, key, &none, BPF_NOEXIST);
	return bpf_map_lookup_elem(&mesh_pod_programs, key);
}

/* The row of a program; NULL if its pod has too many, or the table is full. CPUs may make a row
 * more than that, which does not matter. */
static __always_inline struct mesh_program *mesh_program_row(const struct mesh_program_key *key)
{
	struct mesh_program *program = bpf_map_lookup_elem(&mesh_pod_programs, key);
	struct mesh_program_key of_pod = {.netns = key->netns};
	struct mesh_program *counter;

	if (program)
		return program;
	counter = mesh_make_program_row(&of_pod);
	if (!counter || counter->names >= MESH_PROGRAMS_OF_POD)
		return NULL;
	counter->names++;
	return mesh_make_program_row(key);
}

/* Returns whether all of the first buffer in the receive queue has been read. */
static __always_inline int mesh_head_is_read(const struct tcp_sock *tcp, const struct sk_buff *head)
{
	const struct tcp_skb_cb *cb = (void *)head + bpf_core_field_offset(struct sk_buff, cb);
	__u32 read = BPF_CORE_READ(tcp, copied_seq) - BPF_CORE_READ(cb, seq);

	return read >= BPF_CORE_READ(head, len);
}

static __always_inline void mesh_read_by_splice(const struct tcp_sock *tcp,
						struct mesh_reader *reader,
						struct mesh_program *program)
{
	if (program)
		program->splices = 1;
	reader->splices = 1;
	if (!reader->stuck && mesh_has_messages(tcp)) {
		reader->stuck = bpf_ktime_get_ns();
		MESH_COUNT(stuck);
	}
}

static __always_inline void mesh_read_by_recvmsg(struct mesh_reader *reader,
						 struct mesh_program *program,
						 const struct mesh_program_key *key)
{
	if (program->reads < MESH_READS)
		program->reads++;
	reader->program = *key;
	reader->reads = 1;
}

/* A process has looked for what TCP has received. Most sockets are in no sockmap. */
static __always_inline void mesh_reads_tcp(struct sock *sk)
{
	const struct tcp_sock *tcp = (void *)sk;
	struct mesh_program_key key;
	struct mesh_program *program;
	struct mesh_reader *reader;
	const struct sk_buff *head;
	struct sk_psock *psock;
	__u64 cookie;
	int empty;

	if (!((unsigned long)sk->sk_user_data & MESH_USER_DATA_PSOCK))
		return;
	cookie = sk->__sk_common.skc_cookie.counter;
	reader = bpf_map_lookup_elem(&mesh_readers, &cookie);
	if (!reader)
		return;
	head = sk->sk_receive_queue.next;
	empty = (void *)head == (void *)&sk->sk_receive_queue;
	if (!empty && !mesh_head_is_read(tcp, head))
		return;
	psock = mesh_psock(tcp);
	if (!psock ||
	    mesh_has_verdict(psock)) /* then recvmsg() calls it with an empty queue, too */
		return;
	mesh_current_program(&key, BPF_CORE_READ(sk, __sk_common.skc_net.net, net_cookie));
	program = mesh_program_row(&key);
	if (empty)
		mesh_read_by_splice(tcp, reader, program);
	else if (program)
		mesh_read_by_recvmsg(reader, program, &key);
	else
		reader->reads = 0; /* an unknown program reads this socket now */
}

/* Returns whether messages to a reader may skip TCP. */
static __always_inline int mesh_reads_messages(const struct mesh_reader *reader)
{
	const struct mesh_program *program;

	if (!reader->reads || reader->splices)
		return 0;
	program = bpf_map_lookup_elem(&mesh_pod_programs, &reader->program);
	return program && program->reads >= MESH_READS && !program->splices;
}
