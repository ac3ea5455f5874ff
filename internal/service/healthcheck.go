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

	"beeline.io/beeline/internal/nearest"
)

// Annotations of a Service about its endpoints' health.
const (
	// AnnotationHealthCheck is the kind of check: tcp, http or https. Without it
	// there is none.
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

// HealthCheck is what a Service's annotations say. The zero value is no check.
type HealthCheck struct {
	Probe Probe
	// Port of the endpoint that is asked; zero: the one that serves.
	Port uint16
	// ServeAllDown: while no endpoint passes its check, checks do not count.
	ServeAllDown bool
}

const (
	shortestInterval = 100 * time.Millisecond
	longestInterval  = time.Hour
	shortestTimeout  = 10 * time.Millisecond
	mostInRow        = 100
)

// AnnotationError is what is wrong with an annotation and what to write there.
type AnnotationError struct{ Annotation, Reason string }

func (e AnnotationError) Error() string { return "annotation " + e.Annotation + ": " + e.Reason }

// ParseHealthCheck reads the annotations of a Service. If any is wrong, there is
// no check; errors are sorted by annotation.
func ParseHealthCheck(annotations map[string]string) (HealthCheck, []AnnotationError) {
	p := checkParser{annotations: annotations, check: HealthCheck{Probe: DefaultProbe}}
	for _, name := range slices.Sorted(maps.Keys(annotations)) {
		if strings.HasPrefix(name, AnnotationHealthCheck) {
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

type checkParser struct {
	annotations map[string]string
	any         bool // there is some annotation about health
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
			p.wrong(name, "%.80q: write a path such as /healthz, with a slash at its beginning", value)
		}
	case AnnotationHealthCheckHost:
		if probe.Host = value; !isHost(value) {
			p.wrong(name, "%.80q: write a host name or address, with :PORT after it if need be", value)
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
		probe.Interval = p.duration(name, value, shortestInterval, longestInterval)
	case AnnotationHealthCheckTimeout:
		probe.Timeout = p.duration(name, value, shortestTimeout, longestInterval)
	case AnnotationHealthCheckRise:
		probe.Rise = p.count(name, value)
	case AnnotationHealthCheckFall:
		probe.Fall = p.count(name, value)
	case AnnotationHealthCheckAllDown:
		if p.check.ServeAllDown = value == "serve"; value != "serve" && value != "reject" {
			p.wrong(name, "%.40q: write reject (nobody is served while all endpoints are down) or serve (checks do not count then)", value)
		}
	default:
		p.wrong(name, "there is no such annotation%s: remove it", nearest.Question(name, checkAnnotations))
	}
}

// finish looks at what goes together, and clears what the kind does not use.
func (p *checkParser) finish() {
	probe := &p.check.Probe
	for _, name := range slices.Sorted(maps.Keys(p.annotations)) {
		switch {
		case !slices.Contains(checkAnnotations, name):
		case probe.Kind == "" && name != AnnotationHealthCheck:
			if _, given := p.annotations[AnnotationHealthCheck]; !given {
				p.wrong(name, "means nothing without %s: write that, or remove this", AnnotationHealthCheck)
			}
		case probe.Kind == CheckTCP && slices.Contains([]string{AnnotationHealthCheckPath, AnnotationHealthCheckHost, AnnotationHealthCheckStatus, AnnotationHealthCheckTLSVerify}, name),
			probe.Kind == CheckHTTP && name == AnnotationHealthCheckTLSVerify:
			p.wrong(name, "means nothing for a check of kind %s: remove it, or change %s", probe.Kind, AnnotationHealthCheck)
		}
	}
	_, given := p.annotations[AnnotationHealthCheckTimeout]
	switch {
	case probe.Timeout <= probe.Interval:
	case given:
		p.wrong(AnnotationHealthCheckTimeout, "%v: at most the interval, %v: make one longer or the other shorter", probe.Timeout, probe.Interval)
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
		p.wrong(name, `%.80q: write on, off, or the name that the certificate is for`, value)
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
	if err != nil || n < 1 || n > mostInRow {
		p.wrong(name, "%.40q: write a number of probes from 1 to %d", value, mostInRow)
	}
	return int(n)
}

// isPath: an absolute path with or without a query, fit for a request line.
func isPath(s string) bool {
	u, err := url.ParseRequestURI(s)
	return err == nil && strings.HasPrefix(s, "/") && !strings.HasPrefix(s, "//") && len(s) <= 2048 &&
		u.Host == "" && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '#' })
}

// isHost: a name or address, with or without a port.
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

// hostname is a Host header's name without its port.
func hostname(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		return h
	}
	return strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
}
