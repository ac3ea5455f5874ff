// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"image/png"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"beeline.io/beeline/bench/result"
)

// example has all parts, with unusual samples: few, equal, negative, zero.
func example() *result.File {
	f := &result.File{Schema: result.Schema}
	add := func(part, scenario, hook, side, against, family string, p result.Parameters, metric, unit string, better result.Direction, samples ...float64) {
		f.Add(result.Row{Series: result.Series{Part: part, Scenario: scenario, Hook: hook, Side: side, Family: family, Parameters: p},
			Metric: result.Metric{Name: metric, Unit: unit, Better: better}, Against: against}, samples...)
	}
	for i, scenario := range []string{"not ours", "new, TCP", "below zero"} {
		for _, flows := range []int{1, 10000, 1000000} {
			p := result.Parameters{"flows": flows}
			at := float64((i + 1) * flows / 100)
			if i == 2 {
				at = -20
			}
			add("edge", scenario, "xdp", "Beeline", "minimal", "IPv4", p, "time per packet", "ns", result.Lower, at+100, at+110, at+120, at+101, at+108, at+130)
			add("edge", scenario, "xdp", "minimal", "", "IPv4", p, "time per packet", "ns", result.Lower, 40, 41, 42, 43, 40, 39)
		}
	}
	add("edge", "not ours", "tc ingress", "Beeline", "minimal", "IPv6", result.Parameters{"flows": 1}, "time per packet", "ns", result.Lower, -1)
	for _, side := range []string{"direct, bare node", "direct, bare node (A/A)", "direct, Beeline node", "ClusterIP"} {
		for _, metric := range []string{"p50 latency", "p99 latency"} {
			add("sockets", "request-response, local backend", "", side, "", "IPv4", result.Parameters{"connections": 1}, metric, "us", result.Lower, 20, 21)
		}
	}
	add("balancer", "HTTP", "", "direct", "", "IPv4", nil, "requests per second", "1/s", result.Higher, 5, 5, 5)
	for _, side := range []string{"netfilter", "hook"} {
		add("mesh", "Envoy, alone", "", side, "", "IPv4", result.Parameters{"connections": 64}, "requests per second", "1/s", result.Higher, 5, 6)
	}
	for n := range 7 {
		for _, services := range []int{10, 5000} {
			add("rates", "TCP", "", fmt.Sprintf("way %d", n), "", "IPv4", result.Parameters{"services": services}, "CPU time per packet", "ns", result.Lower, 300, float64(300+services*n))
		}
	}
	for _, services := range []int{10, 5000} {
		for i, offered := range []int{0, 1000, 2000} {
			add("rates", "offered", "", fmt.Sprintf("kube-proxy, %d Services", services), "", "IPv4", result.Parameters{"packets per second": offered}, "share of a CPU", "1", result.Lower, 0.3, float64(i))
		}
		add("rates", "UDP", "", fmt.Sprintf("kube-proxy, %d Services", services), "", "IPv4", nil, "CPU time per packet", "ns", result.Lower, 3, 4)
	}
	add("rates", "UDP", "", "no balancer", "", "IPv4", nil, "CPU time per packet", "ns", result.Lower, 2)
	add("instructions", "UDP", "", "IPVS", "", "IPv4", nil, "instructions per packet", "1", result.Lower, 5127, 5121)
	for n := range 6 {
		add("control", "change", "", fmt.Sprintf("side %d", n), "", "", result.Parameters{"services": 5000}, "CPU time", "s", result.Lower, 1)
	}
	add("control", "cold start", "", "Beeline", "", "", result.Parameters{"services": 5000}, "time", "ms", result.Lower, 0)
	add("control", "cold start", "", "Beeline", "", "", result.Parameters{"services": 5000}, "resident memory", "MiB", result.Lower, 78)
	return f
}

// Each part has its charts, as pictures that others can read, with explaining words; drawn again they are the
// same.
func TestCharts(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	files, err := Write(first, All(example()), "svg", "png")
	if err != nil {
		t.Fatal(err)
	}
	again, err := Write(second, All(example()), "svg", "png")
	if err != nil || len(again) != len(files) {
		t.Fatal(err, again)
	}
	words := map[string][]string{
		"edge-xdp-ipv4": {"Time per packet at XDP, IPv4 (ns)", "minimal balancer", "1 flow", "1,000,000 flows", "new, TCP"},
		"sockets-ipv4-1": {"Latency over IPv4 with 1 connection at a time, median and p99 (\u00b5s)", "ClusterIP", "request-response, local backend",
			"p99"},
		"sockets-ratio-1":                             {"Ratio of median latencies", "A/A"},
		"mesh-requests-per-second-64":                 {"Requests per second with 64 connections", "Envoy, alone", "netfilter", "hook"},
		"balancer-requests-per-second":                {"Requests per second", "direct"},
		"rates-cpu-time-per-packet-tcp-ipv4":          {"CPU time per packet (ns): TCP, IPv4", "way 6, 5,000 Services"},
		"rates-cpu-time-per-packet-tcp-ipv4-services": {"CPU time per packet (ns): TCP, IPv4", "Services", "5,000", "way 6"},
		"rates-cpu-time-per-packet-udp-ipv4-services": {"CPU time per packet (ns): UDP, IPv4", "Services", "kube-proxy"},
		"rates-cpu-time-per-packet-udp-ipv4":          {"no balancer", "kube-proxy, 5,000 Services"},
		"rates-share-of-a-cpu-offered-ipv4":           {"Share of a CPU: offered, IPv4", "Packets per second", "kube-proxy, 10 Services"},
		"instructions-per-packet":                     {"Instructions per packet, emulated", "IPVS"},
		"control-time-s-change-cpu-time":              {"Change, CPU time (s)", "side 5, 5,000 Services"},
		"control-time":                                {"Time (ms), Beeline, 5,000 Services", "cold start"},
		"control-memory":                              {"Memory (MiB)", "resident memory"},
	}
	for name, want := range words {
		picture, err := os.ReadFile(filepath.Join(first, name+".svg"))
		if err != nil {
			t.Error(err)
			continue
		}
		text := textOf(t, picture)
		for _, word := range want {
			if !slices.ContainsFunc(text, func(s string) bool { return strings.Contains(s, word) }) {
				t.Errorf("%s has no %q in %q", name, word, text)
			}
		}
	}
	if picture, _ := os.ReadFile(files[0]); !bytes.Contains(picture, []byte("font-family:Liberation Sans,Arial")) {
		t.Errorf("%s names one font only", files[0])
	}
	for i, file := range files {
		a, errA := os.ReadFile(file)
		b, errB := os.ReadFile(again[i])
		if errA != nil || errB != nil || len(a) == 0 || !bytes.Equal(a, b) {
			t.Errorf("%s: drawn again it differs (%v, %v)", file, errA, errB)
		}
		if bytes.Contains(a, []byte("NaN")) || bytes.Contains(a, []byte("Inf")) {
			t.Errorf("%s contains NaN or Inf", file)
		}
		if strings.HasSuffix(file, ".png") {
			if picture, err := png.Decode(bytes.NewReader(a)); err != nil || picture.Bounds().Dx() < 1000 {
				t.Errorf("%s: %v", file, err)
			}
		}
	}
}

// textOf reads a picture's words, and checks that it is XML.
func textOf(t *testing.T, picture []byte) (all []string) {
	t.Helper()
	decoder := xml.NewDecoder(bytes.NewReader(picture))
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if data, is := token.(xml.CharData); is {
			all = append(all, string(data))
		}
	}
}

func TestNothingToDraw(t *testing.T) {
	if files, err := Write(t.TempDir(), All(&result.File{}), "svg"); err == nil || len(files) > 0 {
		t.Errorf("%v, %v", files, err)
	}
	if _, err := Write(t.TempDir(), All(example()), "gif"); err == nil || !strings.Contains(err.Error(), "gif") {
		t.Error(err)
	}
}

// The marks of an axis are round, in order and inside, and some have numbers.
func TestTicks(t *testing.T) {
	for _, logarithmic := range []bool{false, true} {
		for _, ends := range [][2]float64{{0.98, 1.13}, {10, 2300}, {1, 3e6}, {0.02, 0.9}, {5, 7}} {
			low, high := ends[0], ends[1]
			last, numbers := math.Inf(-1), 0
			for _, tick := range (ticks{logarithmic}).Ticks(low, high) {
				if tick.Value <= last || tick.Value < low*0.99 || tick.Value > high*1.01 {
					t.Errorf("from %v to %v (logarithmic: %v) there is %v after %v", low, high, logarithmic, tick.Value, last)
				}
				last = tick.Value
				if tick.Label != "" {
					numbers++
				}
			}
			if numbers < 2 && !(logarithmic && high/low < 3) || numbers > 12 {
				t.Errorf("from %v to %v (logarithmic: %v) there are %d numbers", low, high, logarithmic, numbers)
			}
		}
	}
	for x, want := range map[float64]string{0: "0", 5: "5", 1000: "1,000", 1234567: "1,234,567", 0.02: "0.02", 1.05: "1.05", -2500: "-2,500"} {
		if got := number(x); got != want {
			t.Errorf("%v is written %q, want %q", x, got, want)
		}
	}
}
