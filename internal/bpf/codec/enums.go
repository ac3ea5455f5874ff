// SPDX-License-Identifier: Apache-2.0

package codec

import (
	"fmt"

	"beeline.io/beeline/internal/bpf"
	"beeline.io/beeline/internal/cluster/service"
)

var verdicts = map[service.Verdict]datapath.Verdict{
	service.Pass:    datapath.Pass,
	service.Reject:  datapath.Reject,
	service.Drop:    datapath.Drop,
	service.Balance: datapath.Balance,
	service.Answer:  datapath.Answer,
}

// VerdictOf decodes a verdict.
func VerdictOf(v datapath.Verdict) service.Verdict {
	for decoded, encoded := range verdicts {
		if encoded == v {
			return decoded
		}
	}
	return service.Verdict(v) // invalid; it prints as a number
}

var dsrs = map[service.DSR]datapath.DSR{
	service.DSRIPIP:   datapath.DSRIPIP,
	service.DSRGeneve: datapath.DSRGeneve,
	service.DSROpt:    datapath.DSROpt,
}

// DSRKind encodes a kind of DSR.
func DSRKind(name service.DSR) datapath.DSR { return dsrs[name] }

// DSROf is the inverse of DSRKind; empty: no DSR.
func DSROf(kind datapath.DSR) service.DSR {
	for name, known := range dsrs {
		if known == kind {
			return name
		}
	}
	if kind == datapath.DSRNone {
		return ""
	}
	return service.DSR(fmt.Sprintf("dsr(%d)", kind))
}
