/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What the programs of pods do with connections between applications and proxies. A program is all
 * processes of a pod whose main thread has one name. */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "mesh/kernel.h"
#include "mesh/maps.h"

/* The number of reads after which a program is known. */
#define MESH_READS 16

/* The agent deletes the rows of former pods. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct mesh_program_key);
	__type(value, struct mesh_program);
} mesh_pod_programs SEC(".maps");

/* The same. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct mesh_acceptor_key);
	__type(value, struct mesh_acceptor);
} mesh_acceptors SEC(".maps");

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

/* Returns whether messages may skip TCP on connections of a program. */
static __always_inline int mesh_program_fits(const struct mesh_program_key *key)
{
	const struct mesh_program *program = bpf_map_lookup_elem(&mesh_pod_programs, key);

	return program && program->reads >= MESH_READS && !program->splices && !program->unfit;
}

/* Notes who has read what was sent to a port. */
static __always_inline void mesh_note_acceptor(const struct mesh_program_key *program, __u16 port)
{
	struct mesh_acceptor_key key = {.netns = program->netns, .port = port};
	struct mesh_acceptor *known = bpf_map_lookup_elem(&mesh_acceptors, &key), one = {};
	struct mesh_program_key of_pod = {.netns = program->netns};
	const __u64 *name = (void *)program->name, *other;
	struct mesh_program *counter;

	if (!known) {
		counter = mesh_make_program_row(&of_pod);
		if (!counter || counter->ports >= MESH_PORTS_OF_POD)
			return;
		one.program = *program;
		if (!bpf_map_update_elem(&mesh_acceptors, &key, &one, BPF_NOEXIST))
			__sync_fetch_and_add(&counter->ports, 1);
		return;
	}
	other = (void *)known->program.name;
	if (name[0] != other[0] || name[1] != other[1])
		known->several = 1;
}

/* Another program may accept connections at a port from now on. */
static __always_inline void mesh_forget_acceptor(__u64 netns, __u16 port)
{
	struct mesh_acceptor_key key = {.netns = netns, .port = port};
	struct mesh_program_key of_pod = {.netns = netns};
	struct mesh_program *counter;

	if (bpf_map_delete_elem(&mesh_acceptors, &key))
		return;
	counter = bpf_map_lookup_elem(&mesh_pod_programs, &of_pod);
	if (counter && counter->ports)
		__sync_fetch_and_add(&counter->ports, -1);
}

/* Returns the program that accepts connections at a port; NULL if it is not known, or if there are
 * several. */
static __always_inline const struct mesh_program_key *mesh_acceptor_at(__u64 netns, __u16 port)
{
	struct mesh_acceptor_key key = {.netns = netns, .port = port};
	const struct mesh_acceptor *known = bpf_map_lookup_elem(&mesh_acceptors, &key);

	return known && !known->several ? &known->program : NULL;
}
