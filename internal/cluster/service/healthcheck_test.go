// SPDX-License-Identifier: Apache-2.0

package service

import (
	"strings"
	"testing"
	"time"
)

// healthAnnotations returns health check annotations by the end of their names; "" is the kind.
func healthAnnotations(pairs ...string) map[string]string {
	m := map[string]string{"other.io/health-check": "x"}
	for i := 0; i < len(pairs); i += 2 {
		name := AnnotationHealthCheck
		if pairs[i] != "" {
			name += "-" + pairs[i]
		}
		m[name] = pairs[i+1]
	}
	return m
}

func TestHealthCheckAnnotations(t *testing.T) {
	with := func(change func(*HealthCheck)) HealthCheck {
		c := HealthCheck{Probe: DefaultProbe}
		change(&c)
		return c
	}
	for name, test := range map[string]struct {
		annotations map[string]string
		want        HealthCheck
	}{
		"none": {healthAnnotations(), HealthCheck{}},
		"tcp": {healthAnnotations("", "tcp"), with(func(c *HealthCheck) {
			c.Probe.Kind, c.Probe.Path, c.Probe.Status = CheckTCP, "", StatusRanges{}
		})},
		"http": {healthAnnotations("", "http"), with(func(c *HealthCheck) { c.Probe.Kind = CheckHTTP })},
		"all of http": {healthAnnotations("", "http", "path", "/a?b=c", "host", "shop.example:81", "status", "200, 204-206,404", "port", "9000",
			"interval", "1m", "timeout", "1.5s", "rise", "1", "fall", "100", "all-down", "serve"), HealthCheck{
			Probe: Probe{Kind: CheckHTTP, Path: "/a?b=c", Host: "shop.example:81", Status: StatusRanges{{200, 200}, {204, 206}, {404, 404}},
				Interval: time.Minute, Timeout: 1500 * time.Millisecond, Rise: 1, Fall: 100},
			Port: 9000, ServeAllDown: true,
		}},
		"https by its address": {healthAnnotations("", "https"), with(func(c *HealthCheck) { c.Probe.Kind = CheckHTTPS })},
		"https by the Host header": {healthAnnotations("", "https", "host", "a.example:1"), with(func(c *HealthCheck) {
			c.Probe.Kind, c.Probe.Host, c.Probe.ServerName = CheckHTTPS, "a.example:1", "a.example"
		})},
		"https by a name": {healthAnnotations("", "https", "host", "a.example", "tls-verify", "b.example"), with(func(c *HealthCheck) {
			c.Probe.Kind, c.Probe.Host, c.Probe.ServerName = CheckHTTPS, "a.example", "b.example"
		})},
		"https, anybody": {healthAnnotations("", "https", "tls-verify", "off"), with(func(c *HealthCheck) { c.Probe.Kind, c.Probe.Insecure = CheckHTTPS, true })},
		"a short interval is the timeout, too": {healthAnnotations("", "http", "interval", "500ms", "all-down", "reject"), with(func(c *HealthCheck) {
			c.Probe.Kind, c.Probe.Interval, c.Probe.Timeout = CheckHTTP, 500*time.Millisecond, 500*time.Millisecond
		})},
	} {
		if got, errs := ParseHealthCheck(test.annotations); got != test.want || len(errs) > 0 {
			t.Errorf("%s: %+v, %v; want %+v", name, got, errs, test.want)
		}
	}
}

// H5: each invalid annotation is named, with the valid values, and there is no check.
func TestWrongHealthCheckAnnotations(t *testing.T) {
	for _, test := range []struct {
		annotations map[string]string
		want        string // in the errors, in order, split by |
	}{
		{healthAnnotations("", "HTTP"), `health-check: "HTTP": write tcp, http or https`},
		{healthAnnotations("", ""), `health-check: "": write tcp`},
		{map[string]string{"beeline.io/healthcheck": "http", "beeline.io/health-check-path": "/"},
			`beeline.io/healthcheck: there is no such annotation, did you mean "beeline.io/health-check"?`},
		{healthAnnotations("path", "/"), `health-check-path: has no effect without beeline.io/health-check: add that annotation, or remove this one`},
		{healthAnnotations("", "tcp", "path", "/", "status", "200"), `health-check-path: has no effect on a check of kind tcp|health-check-status: has no effect`},
		{healthAnnotations("", "http", "tls-verify", "on"), `health-check-tls-verify: has no effect on a check of kind http`},
		{healthAnnotations("", "http", "path", "health"), `health-check-path: "health": write a path with a leading slash, such as /healthz`},
		{healthAnnotations("", "http", "path", "/a b"), `health-check-path:`},
		{healthAnnotations("", "http", "path", "//a"), `health-check-path:`},
		{healthAnnotations("", "http", "path", "/a\r\nHost: b"), `health-check-path:`},
		{healthAnnotations("", "http", "host", "a b"), `health-check-host:`},
		{healthAnnotations("", "http", "host", "a:b"), `health-check-host:`},
		{healthAnnotations("", "http", "status", "2xx"), `health-check-status: "2xx": write status codes`},
		{healthAnnotations("", "http", "status", "399-200"), `health-check-status:`},
		{healthAnnotations("", "http", "status", "200,201,202,203,204"), `write at most 4`},
		{healthAnnotations("", "https", "tls-verify", "yes please"), `write on, off, or the name`},
		{healthAnnotations("", "tcp", "port", "0"), `health-check-port: "0": write a port from 1 to 65535`},
		{healthAnnotations("", "tcp", "port", "http"), `health-check-port:`},
		{healthAnnotations("", "tcp", "interval", "5"), `health-check-interval: "5": write a time from 100ms to 1h0m0s with its unit`},
		{healthAnnotations("", "tcp", "interval", "1ms"), `health-check-interval:`},
		{healthAnnotations("", "tcp", "interval", "5", "timeout", "3s"), `health-check-interval: "5"`},
		{healthAnnotations("", "tcp", "interval", "10ms", "timeout", "3s"), `health-check-interval: "10ms"`},
		{healthAnnotations("", "tcp", "timeout", "6s"), `health-check-timeout: 6s: longer than the interval, 5s`},
		{healthAnnotations("", "tcp", "rise", "0", "fall", "many"), `health-check-fall: "many": write a number|health-check-rise: "0"`},
		{healthAnnotations("", "tcp", "all-down", "maybe"), `health-check-all-down: "maybe": write reject`},
		{healthAnnotations("", "tcp", "intervall", "5s"), `health-check-intervall: there is no such annotation, did you mean "beeline.io/health-check-interval"?`},
	} {
		check, errs := ParseHealthCheck(test.annotations)
		wants := strings.Split(test.want, "|")
		if check != (HealthCheck{}) || len(errs) != len(wants) {
			t.Errorf("%v: %+v, %v; want %s", test.annotations, check, errs, test.want)
			continue
		}
		for i, want := range wants {
			if !strings.Contains(errs[i].Error(), want) {
				t.Errorf("%v: %q, want %q", test.annotations, errs[i], want)
			}
		}
	}
}

func TestProbeInWords(t *testing.T) {
	for want, annotations := range map[string]map[string]string{
		"tcp, each 5s within 2s, down after 3, up after 2":                                                             healthAnnotations("", "tcp"),
		"http GET /, status 200-399, each 5s within 2s, down after 3, up after 2":                                      healthAnnotations("", "http"),
		"https GET /a of b.example, status 200, certificate of b.example, each 5s within 2s, down after 3, up after 2": healthAnnotations("", "https", "path", "/a", "host", "b.example", "status", "200"),
		"https GET /, status 200-399, any certificate, each 5s within 2s, down after 3, up after 2":                    healthAnnotations("", "https", "tls-verify", "off"),
		"https GET /, status 200-399, certificate of its address, each 5s within 2s, down after 3, up after 2":         healthAnnotations("", "https"),
	} {
		check, _ := ParseHealthCheck(annotations)
		if got := check.Probe.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
