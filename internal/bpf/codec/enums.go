// SPDX-License-Identifier: Apache-2.0

package codec

import (
	"fmt"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
)

var verdicts = map[service.Verdict]bpf.Verdict{
	service.Pass:    bpf.Pass,
	service.Reject:  bpf.Reject,
	service.Drop:    bpf.Drop,
	service.Balance: bpf.Balance,
	service.Answer:  bpf.Answer,
}

// VerdictOf decodes a verdict.
func VerdictOf(v bpf.Verdict) service.Verdict {
	for decoded, encoded := range verdicts {
		if encoded == v {
			return decoded
		}
	}
	return service.Verdict(v) // invalid; it prints as a number
}

var dsrs = map[service.DSR]bpf.DSR{
	service.DSRIPIP:   bpf.DSRIPIP,
	service.DSRGeneve: bpf.DSRGeneve,
	service.DSROpt:    bpf.DSROpt,
}

// DSRKind encodes a kind of DSR.
func DSRKind(name service.DSR) bpf.DSR { return dsrs[name] }

// DSROf is the inverse of DSRKind; empty: no DSR.
func DSROf(kind bpf.DSR) service.DSR {
	for name, known := range dsrs {
		if known == kind {
			return name
		}
	}
	if kind == bpf.DSRNone {
		return ""
	}
	return service.DSR(fmt.Sprintf("dsr(%d)", kind))
}
