// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"

// Both loops are five instructions, one of which differs.

// func runAdditions(loops int64)
TEXT ·runAdditions(SB), NOSPLIT, $0-8
	MOVQ loops+0(FP), CX
	MOVQ $3, BX
add:
	MOVQ CX, AX
	XORL DX, DX
	ADDQ BX, AX
	DECQ CX
	JNZ  add
	RET

// func runDivisions(loops int64)
TEXT ·runDivisions(SB), NOSPLIT, $0-8
	MOVQ loops+0(FP), CX
	MOVQ $3, BX
divide:
	MOVQ CX, AX
	XORL DX, DX
	DIVQ BX
	DECQ CX
	JNZ  divide
	RET
