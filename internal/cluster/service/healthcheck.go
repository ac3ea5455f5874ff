// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"beeline.io/beeline/internal/util/suggest"
)

// Annotations of a Service that configure its health check.
const (
	// AnnotationHealthCheck is the kind of check: tcp, http or https. Without it there is no check.
	AnnotationHealthCheck = "beeline.io/health-check"

	AnnotationHealthCheckPath      = AnnotationHealthCheck + "-path"
	AnnotationHealthCheckHost      = AnnotationHealthCheck + "-host"
	AnnotationHealthCheckStatus    = AnnotationHealthCheck + "-status"
	AnnotationHealthCheckTLSVerify = AnnotationHealthCheck + "-tls-verify"
	AnnotationHealthCheckPort      = AnnotationHealthCheck + "-port"
	AnnotationHealthCheckInterval  = AnnotationHealthCheck + "-interval"
	AnnotationHealthCheckTimeout   = AnnotationHealthCheck + "-timeout"
	AnnotationHealthCheckRise      = AnnotationHealthCheck + "-rise"
	AnnotationHealthCheckFall      = AnnotationHealthCheck + "-fall"
	AnnotationHealthCheckAllDown   = AnnotationHealthCheck + "-all-down"
)

// HealthCheck is the parsed annotations of a Service. The zero value means no check.
type HealthCheck struct {
	Probe Probe
	// Port is the port to probe; zero for the serving port.
	Port uint16
	// ServeAllDown ignores the check while no endpoint passes it.
	ServeAllDown bool
}

const (
	minInterval = 100 * time.Millisecond
	maxInterval = time.Hour
	minTimeout  = 10 * time.Millisecond
	maxInRow    = 100
)

// AnnotationError describes an invalid annotation and the valid values.
type AnnotationError struct{ Annotation, Reason string }

func (e AnnotationError) Error() string { return "annotation " + e.Annotation + ": " + e.Reason }

// ParseHealthCheck parses the annotations of a Service. If one is invalid, there is no check. Errors are sorted
// by annotation.
func ParseHealthCheck(annotations map[string]string) (HealthCheck, []AnnotationError) {
	p := checkParser{annotations: annotations, check: HealthCheck{Probe: DefaultProbe}}
	for _, name := range slices.Sorted(maps.Keys(annotations)) {
		if isOfHealthCheck(name) {
			p.read(name, annotations[name])
		}
	}
	if !p.any {
		return HealthCheck{}, nil
	}
	p.finish()
	if len(p.errs) > 0 {
		slices.SortStableFunc(p.errs, func(a, b AnnotationError) int { return strings.Compare(a.Annotation, b.Annotation) })
		return HealthCheck{}, p.errs
	}
	return p.check, nil
}

// isOfHealthCheck reports whether an annotation is of the health check, or is meant to be.
func isOfHealthCheck(name string) bool {
	return strings.HasPrefix(name, AnnotationHealthCheck) ||
		strings.HasPrefix(name, annotationPrefix) && slices.Contains(checkAnnotations, suggest.Nearest(name, annotationsOf[KindService]))
}

type checkParser struct {
	annotations map[string]string
	any         bool // at least one health check annotation is set
	misspelt    bool // the kind of check is, and so the others miss it
	noInterval  bool // the interval is wrong, and the timeout is not compared with it
	check       HealthCheck
	errs        []AnnotationError
}

func (p *checkParser) wrong(name, format string, args ...any) {
	p.errs = append(p.errs, AnnotationError{name, fmt.Sprintf(format, args...)})
}

var checkAnnotations = []string{
	AnnotationHealthCheck, AnnotationHealthCheckPath, AnnotationHealthCheckHost, AnnotationHealthCheckStatus,
	AnnotationHealthCheckTLSVerify, AnnotationHealthCheckPort, AnnotationHealthCheckInterval,
	AnnotationHealthCheckTimeout, AnnotationHealthCheckRise, AnnotationHealthCheckFall, AnnotationHealthCheckAllDown,
}

func (p *checkParser) read(name, value string) {
	p.any = true
	probe := &p.check.Probe
	switch name {
	case AnnotationHealthCheck:
		if probe.Kind = CheckKind(value); !slices.Contains([]CheckKind{CheckTCP, CheckHTTP, CheckHTTPS}, probe.Kind) {
			p.wrong(name, "%.40q: write tcp, http or https", value)
		}
	case AnnotationHealthCheckPath:
		if probe.Path = value; !isPath(value) {
			p.wrong(name, "%.80q: write a path with a leading slash, such as /healthz", value)
		}
	case AnnotationHealthCheckHost:
		if probe.Host = value; !isHost(value) {
			p.wrong(name, "%.80q: write a host name or address, optionally with :PORT", value)
		}
	case AnnotationHealthCheckStatus:
		p.status(name, value)
	case AnnotationHealthCheckTLSVerify:
		p.tlsVerify(name, value)
	case AnnotationHealthCheckPort:
		port, err := strconv.ParseUint(value, 10, 16)
		if err != nil || port == 0 {
			p.wrong(name, "%.40q: write a port from 1 to 65535", value)
		}
		p.check.Port = uint16(port)
	case AnnotationHealthCheckInterval:
		before := len(p.errs)
		probe.Interval = p.duration(name, value, minInterval, maxInterval)
		p.noInterval = len(p.errs) > before
	case AnnotationHealthCheckTimeout:
		probe.Timeout = p.duration(name, value, minTimeout, maxInterval)
	case AnnotationHealthCheckRise:
		probe.Rise = p.count(name, value)
	case AnnotationHealthCheckFall:
		probe.Fall = p.count(name, value)
	case AnnotationHealthCheckAllDown:
		if p.check.ServeAllDown = value == "serve"; value != "serve" && value != "reject" {
			p.wrong(name, "%.40q: write reject (clients are rejected while all endpoints are down) or serve (checks are ignored then)", value)
		}
	default:
		p.misspelt = p.misspelt || suggest.Nearest(name, checkAnnotations) == AnnotationHealthCheck
		p.wrong(name, "%s", whyUnknown(KindService, name))
	}
}

// finish checks combinations, and clears fields that the kind does not use.
func (p *checkParser) finish() {
	probe := &p.check.Probe
	for _, name := range slices.Sorted(maps.Keys(p.annotations)) {
		switch {
		case !slices.Contains(checkAnnotations, name):
		case probe.Kind == "" && name != AnnotationHealthCheck:
			if _, given := p.annotations[AnnotationHealthCheck]; !given && !p.misspelt {
				p.wrong(name, "has no effect without %s: add that annotation, or remove this one", AnnotationHealthCheck)
			}
		case probe.Kind == CheckTCP && slices.Contains([]string{AnnotationHealthCheckPath, AnnotationHealthCheckHost, AnnotationHealthCheckStatus, AnnotationHealthCheckTLSVerify}, name),
			probe.Kind == CheckHTTP && name == AnnotationHealthCheckTLSVerify:
			p.wrong(name, "has no effect on a check of kind %s: remove it, or change %s", probe.Kind, AnnotationHealthCheck)
		}
	}
	_, given := p.annotations[AnnotationHealthCheckTimeout]
	switch {
	case probe.Timeout <= probe.Interval || p.noInterval:
	case given:
		p.wrong(AnnotationHealthCheckTimeout, "%v: longer than the interval, %v: make the interval longer or the timeout shorter", probe.Timeout, probe.Interval)
	default:
		probe.Timeout = probe.Interval
	}
	switch probe.Kind {
	case CheckTCP:
		probe.Path, probe.Status = "", StatusRanges{}
	case CheckHTTPS:
		if probe.ServerName == "" && !probe.Insecure {
			probe.ServerName = hostname(probe.Host)
		}
	}
}

func (p *checkParser) status(name, value string) {
	ranges, parts := StatusRanges{}, strings.Split(value, ",")
	if len(parts) > len(ranges) {
		p.wrong(name, "%.80q: write at most %d codes or ranges", value, len(ranges))
		return
	}
	for i, part := range parts {
		first, last, isRange := strings.Cut(strings.TrimSpace(part), "-")
		if !isRange {
			last = first
		}
		a, err1 := strconv.ParseUint(first, 10, 16)
		b, err2 := strconv.ParseUint(last, 10, 16)
		if err1 != nil || err2 != nil || a < 100 || b > 599 || a > b {
			p.wrong(name, "%.80q: write status codes from 100 to 599 such as 200, 200-399 or 200,204", value)
			return
		}
		ranges[i] = StatusRange{uint16(a), uint16(b)}
	}
	p.check.Probe.Status = ranges
}

func (p *checkParser) tlsVerify(name, value string) {
	switch {
	case value == "on":
	case value == "off":
		p.check.Probe.Insecure = true
	case isHostname(value):
		p.check.Probe.ServerName = value
	default:
		p.wrong(name, `%.80q: write on, off, or the name in the certificate`, value)
	}
}

func (p *checkParser) duration(name, value string, least, most time.Duration) time.Duration {
	d, err := time.ParseDuration(value)
	if err != nil || d < least || d > most {
		p.wrong(name, "%.40q: write a time from %s to %s with its unit, such as 500ms or 5s", value, least, most)
	}
	return d
}

func (p *checkParser) count(name, value string) int {
	n, err := strconv.ParseUint(value, 10, 8)
	if err != nil || n < 1 || n > maxInRow {
		p.wrong(name, "%.40q: write a number of probes from 1 to %d", value, maxInRow)
	}
	return int(n)
}

// isPath reports whether s is an absolute path, with or without a query, that is valid in a request line.
func isPath(s string) bool {
	u, err := url.ParseRequestURI(s)
	return err == nil && strings.HasPrefix(s, "/") && !strings.HasPrefix(s, "//") && len(s) <= 2048 &&
		u.Host == "" && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '#' })
}

// isHost reports whether s is a name or address, with or without a port.
func isHost(s string) bool {
	if host, port, err := net.SplitHostPort(s); err == nil {
		n, err := strconv.ParseUint(port, 10, 16)
		return err == nil && n > 0 && isHostname(host)
	}
	return isHostname(strings.TrimSuffix(strings.TrimPrefix(s, "["), "]"))
}

func isHostname(s string) bool {
	if a, err := netip.ParseAddr(s); err == nil {
		return a.Zone() == ""
	}
	return validation.IsDNS1123Subdomain(strings.ToLower(s)) == nil
}

// hostname returns the name in a Host header without its port.
func hostname(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		return h
	}
	return strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
}
