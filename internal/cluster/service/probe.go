// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// CheckKind is the kind of health check.
type CheckKind string

// The kinds of check.
const (
	CheckTCP   CheckKind = "tcp"   // the connection succeeds
	CheckHTTP  CheckKind = "http"  // a GET returns an expected status
	CheckHTTPS CheckKind = "https" // the same over TLS
)

// StatusRange is a range of HTTP status codes, both ends included.
type StatusRange struct{ First, Last uint16 }

// StatusRanges are up to four ranges; unused ones are zero. An array is comparable.
type StatusRanges [4]StatusRange

// Has reports whether one of the ranges contains the code.
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

// Probe is how a target is probed, and when its state changes. Equal Probes are interchangeable.
type Probe struct {
	Kind CheckKind
	// Path begins with a slash and may have a query; empty for CheckTCP.
	Path string
	// Host is the Host header; empty for the address and port of the target.
	Host   string
	Status StatusRanges // zero for CheckTCP
	// ServerName is the name that the certificate must have, and the SNI name; empty for the address.
	// Insecure accepts any certificate.
	ServerName string
	Insecure   bool
	// Interval is the time between the starts of two probes; Timeout is the maximum duration of
	// one.
	Interval, Timeout time.Duration
	// Rise is the number of consecutive successes that bring a target up, Fall the number of consecutive
	// failures that take it down.
	Rise, Fall int
}

// DefaultProbe holds the defaults of the annotations. A target that stops answering is out of service after 12
// to 17 seconds.
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
