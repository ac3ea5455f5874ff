// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// CheckKind says how an endpoint is asked.
type CheckKind string

// The kinds of check.
const (
	CheckTCP   CheckKind = "tcp"   // a connection is enough
	CheckHTTP  CheckKind = "http"  // a GET, and a status that is wanted
	CheckHTTPS CheckKind = "https" // the same over TLS
)

// StatusRange is a range of HTTP status codes, both ends included.
type StatusRange struct{ First, Last uint16 }

// StatusRanges are up to four, the unused ones zero, so that they can be compared.
type StatusRanges [4]StatusRange

// Has says whether one of the ranges has the code.
func (r StatusRanges) Has(code int) bool {
	return slices.ContainsFunc(r[:], func(s StatusRange) bool {
		return s.First != 0 && int(s.First) <= code && code <= int(s.Last)
	})
}

func (r StatusRanges) String() string {
	var parts []string
	for _, s := range r {
		switch {
		case s.First == 0:
		case s.First == s.Last:
			parts = append(parts, fmt.Sprint(s.First))
		default:
			parts = append(parts, fmt.Sprintf("%d-%d", s.First, s.Last))
		}
	}
	return strings.Join(parts, ",")
}

// Probe is how a target is asked, and when its state changes. Two that are equal
// ask the same.
type Probe struct {
	Kind CheckKind
	// Path begins with a slash and may have a query; empty for CheckTCP.
	Path string
	// Host is the Host header; empty: the address and port that are asked.
	Host   string
	Status StatusRanges // zero for CheckTCP
	// ServerName is whom the certificate must be for, and the name that is asked for
	// (SNI); empty: the address. Insecure: any certificate will do.
	ServerName string
	Insecure   bool
	// Interval is between the beginnings of two probes, Timeout what one may take.
	Interval, Timeout time.Duration
	// Rise successes in a row make a target that is down serve again, Fall failures
	// take one out.
	Rise, Fall int
}

// DefaultProbe is what the annotations change. A target that stops answering is
// out after 12 to 17 seconds.
var DefaultProbe = Probe{
	Path: "/", Status: StatusRanges{{200, 399}},
	Interval: 5 * time.Second, Timeout: 2 * time.Second, Rise: 2, Fall: 3,
}

func (p Probe) String() string {
	words := []string{string(p.Kind)}
	if p.Kind != CheckTCP {
		words[0] += " GET " + p.Path
		if p.Host != "" {
			words[0] += " of " + p.Host
		}
		words = append(words, "status "+p.Status.String())
	}
	switch {
	case p.Kind != CheckHTTPS:
	case p.Insecure:
		words = append(words, "any certificate")
	default:
		words = append(words, "certificate of "+cmp.Or(p.ServerName, "its address"))
	}
	words = append(words, fmt.Sprintf("each %v within %v", p.Interval, p.Timeout), fmt.Sprintf("down after %d", p.Fall), fmt.Sprintf("up after %d", p.Rise))
	return strings.Join(words, ", ")
}
