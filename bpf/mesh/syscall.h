/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* By which system call a message is sent. Programs of type sk_msg do not get its flags, so they
 * read the arguments of the call. Only known calls may skip TCP: io_uring has its own place for
 * flags, and 32-bit programs other numbers. */
#pragma once

#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "mesh/reader.h"

/* Linux: arch/x86/include/asm/ptrace.h, arch/arm64/include/asm/ptrace.h */
struct pt_regs___x86 {
	unsigned long orig_ax, dx, r10;
} __attribute__((preserve_access_index));

struct pt_regs___arm64 {
	__u64 regs[31];
	__s32 syscallno;
} __attribute__((preserve_access_index));

/* Linux: include/linux/socket.h */
#define MESH_MSG_OOB 1

/* A call that sends, and the argument that has its flags. */
enum mesh_call { MESH_OTHER_CALL, MESH_CALL_WITHOUT_FLAGS, MESH_FLAGS_THIRD, MESH_FLAGS_FOURTH };

/* Linux: arch/x86/entry/syscalls/syscall_64.tbl */
static __always_inline enum mesh_call mesh_call_x86(__u64 number)
{
	switch (number) {
	case 1:	  /* write */
	case 20:  /* writev */
	case 40:  /* sendfile */
	case 275: /* splice */
	case 328: /* pwritev2 */
		return MESH_CALL_WITHOUT_FLAGS;
	case 46: /* sendmsg */
		return MESH_FLAGS_THIRD;
	case 44:  /* sendto */
	case 307: /* sendmmsg */
		return MESH_FLAGS_FOURTH;
	}
	return MESH_OTHER_CALL;
}

/* Linux: include/uapi/asm-generic/unistd.h */
static __always_inline enum mesh_call mesh_call_arm64(__u64 number)
{
	switch (number) {
	case 64:  /* write */
	case 66:  /* writev */
	case 71:  /* sendfile */
	case 76:  /* splice */
	case 287: /* pwritev2 */
		return MESH_CALL_WITHOUT_FLAGS;
	case 211: /* sendmsg */
		return MESH_FLAGS_THIRD;
	case 206: /* sendto */
	case 269: /* sendmmsg */
		return MESH_FLAGS_FOURTH;
	}
	return MESH_OTHER_CALL;
}

/* Returns what the calling process sends by, and the flags that it has given. */
static __always_inline enum mesh_call mesh_sending_call(__u64 *flags)
{
	void *registers = (void *)bpf_task_pt_regs(bpf_get_current_task_btf());
	enum mesh_call call = MESH_OTHER_CALL;
	__u64 third = 0, fourth = 0;

	if (bpf_core_field_exists(struct pt_regs___x86, orig_ax)) {
		struct pt_regs___x86 *x86 = registers;

		call = mesh_call_x86(BPF_CORE_READ(x86, orig_ax));
		third = BPF_CORE_READ(x86, dx);
		fourth = BPF_CORE_READ(x86, r10);
	} else if (bpf_core_field_exists(struct pt_regs___arm64, syscallno)) {
		struct pt_regs___arm64 *arm64 = registers;

		call = mesh_call_arm64((__u32)BPF_CORE_READ(arm64, syscallno));
		third = BPF_CORE_READ(arm64, regs[2]);
		fourth = BPF_CORE_READ(arm64, regs[3]);
	}
	*flags = call == MESH_FLAGS_THIRD ? third : call == MESH_FLAGS_FOURTH ? fourth : 0;
	return call;
}

/* Returns whether the message that the calling process sends may skip TCP. It may not if the
 * program has sent urgent data before, or does now: TCP tells the receiver of that. */
static __always_inline int mesh_sends_plainly(struct mesh_reader *reader, __u64 netns)
{
	struct mesh_program_key key;
	struct mesh_program *program;
	__u64 flags;
	enum mesh_call call = mesh_sending_call(&flags);
	int urgent = (flags & MESH_MSG_OOB) != 0;

	if (urgent)
		reader->urgent = 1;
	else if (reader->sender_known)
		return call != MESH_OTHER_CALL && !reader->urgent;
	mesh_current_program(&key, netns);
	program = mesh_program_row(&key);
	if (!program)
		return 0;
	if (urgent)
		program->urgent = 1;
	if (program->urgent)
		reader->urgent = 1;
	reader->sender_known = 1;
	return call != MESH_OTHER_CALL && !reader->urgent;
}
