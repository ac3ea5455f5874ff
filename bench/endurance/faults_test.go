// SPDX-License-Identifier: Apache-2.0

package endurance

import (
	"cmp"
	"context"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"beeline.io/beeline/bench/endpoint"
	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/bench/result"
	"beeline.io/beeline/test/lab"
	"beeline.io/beeline/test/needs"
)

func TestMain(m *testing.M) {
	lab.Main()
	endpoint.Main()
	os.Exit(m.Run())
}

// Failures of clients are counted by kind: rules on the path cause each fault for a part of their packets.
func TestEnduranceCountsFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("the endurance benchmark takes a minute: `make test-full` runs it")
	}
	needs.Root(t)
	one, two, err := harness.ChooseCPUs()
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{&harness.Bench{Report: harness.Report{Results: &result.File{}}, One: one, Two: two}, &Settings{idle: 20}}
	rig, err := newRig(t.Context(), b, sides[0], 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := rig.end(); err != nil {
			t.Error(err)
		}
	})
	router := rig.world.Host("node-b")
	iptables := func(t *testing.T, args ...string) {
		t.Helper()
		argv := append([]string{"iptables-nft", "-w"}, args...)
		if out, err := router.Command(context.Background(), argv...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", strings.Join(argv, " "), err, out)
		}
	}
	// rule replaces the previous rule, and resets its counter.
	rule := func(t *testing.T, rule ...string) {
		t.Helper()
		iptables(t, "-F", "FORWARD")
		iptables(t, append([]string{"-A", "FORWARD", "-d", rig.target.Addr().String()}, rule...)...)
	}
	// Other work on the machine may delay clients that no rule delays, or change the order of their packets: then
	// the case is repeated. It is the benchmark's own counting that is under test.
	const clients, tries = 100, 3
	fourth := []string{"-m", "statistic", "--mode", "nth", "--every", "4", "--packet", "0", "-j"}
	type counts = endpoint.LoadResult
	for _, c := range []struct {
		name string
		rule []string
		// target is the fate of every fourth packet that the rule matches.
		target []string
		load   endpoint.LoadConfig
		want   counts
	}{
		{"nothing, UDP", []string{"-p", "udp"}, []string{"ACCEPT"}, endpoint.LoadConfig{Datagrams: true}, counts{Answered: 100}},
		{"nothing, TCP", []string{"-p", "tcp"}, []string{"ACCEPT"}, endpoint.LoadConfig{ServerCloses: true}, counts{Answered: 100}},
		{"lost datagrams", []string{"-p", "udp"}, []string{"DROP"}, endpoint.LoadConfig{Datagrams: true, Patience: 2 * time.Second}, counts{Answered: 75, TimedOut: 25}},
		{"lost datagrams, retransmitted", []string{"-p", "udp"}, []string{"DROP"}, endpoint.LoadConfig{Datagrams: true, AskAgain: true}, counts{Answered: 100, Delayed: 25}},
		{"refused datagrams", []string{"-p", "udp"}, []string{"REJECT"}, endpoint.LoadConfig{Datagrams: true}, counts{Answered: 75, Refused: 25}},
		{"refused SYNs", []string{"-p", "tcp", "--syn"}, []string{"REJECT", "--reject-with", "tcp-reset"}, endpoint.LoadConfig{}, counts{Answered: 75, Refused: 25}},
		{"lost SYNs", []string{"-p", "tcp", "--syn"}, []string{"DROP"}, endpoint.LoadConfig{ServerCloses: true}, counts{Answered: 100, Delayed: 25}},
		{"reset requests", []string{"-p", "tcp", "--tcp-flags", "PSH", "PSH"}, []string{"REJECT", "--reject-with", "tcp-reset"}, endpoint.LoadConfig{}, counts{Answered: 75, Reset: 25}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got counts
			for n := range tries {
				if n > 0 {
					t.Logf("excused: repeated after %+v, want %+v", got, c.want)
				}
				rule(t, slices.Concat(c.rule, fourth, c.target)...)
				c.load.Target, c.load.Sources, c.load.First = rig.target, clientRange, rig.clients(clients)
				// All begin before the first of them retransmits, because every fourth packet
				// should be another client's.
				c.load.Count, c.load.Rate, c.load.CPU = clients, 2000, two.Client
				c.load.Patience = cmp.Or(c.load.Patience, 10*time.Second)
				if got, err = endpoint.RunLoad(t.Context(), rig.world.Host("client"), c.load); err != nil {
					t.Fatal(err)
				}
				c.want.Asked, c.want.Sending, c.want.P50, c.want.P99 = clients, got.Sending, got.P50, got.P99
				if got == c.want {
					return
				}
			}
			t.Errorf("%+v, want %+v", got, c.want)
		})
	}
	t.Run("idle connections", func(t *testing.T) {
		iptables(t, "-F", "FORWARD")
		idle, err := endpoint.StartIdle(t.Context(), rig.world.Host("client"), endpoint.IdleConfig{
			Targets: []netip.AddrPort{rig.target, rig.other}, Each: 20, Sources: clientRange, First: rig.clients(40), Patience: 3 * time.Second, CPU: two.Client})
		if err != nil {
			t.Fatal(err)
		}
		defer idle.Stop()
		rule(t, "-p", "tcp", "-j", "DROP")
		for _, s := range rig.servers {
			if err := s.Speak(); err != nil {
				t.Fatal(err)
			}
		}
		got, err := idle.Speak()
		if err != nil {
			t.Fatal(err)
		}
		lost, served := endpoint.IdleCount{Asked: 10}, endpoint.IdleCount{Asked: 10, Answered: 10}
		for i, want := range []endpoint.IdleCount{lost, served} {
			if got[i].Client != want || got[i].Server != want {
				t.Errorf("to %s: %+v, want %+v of each kind", pods[i], got[i], want)
			}
		}
	})
	t.Run("void", func(t *testing.T) {
		rule(t, append([]string{"-p", "udp"}, append(fourth, "DROP")...)...)
		err := rig.run(t.Context(), []enduranceClients{{scenario: scenarioUDP, datagrams: true, rate: 500, count: 20, patience: time.Second}})
		if err == nil || !strings.Contains(err.Error(), "void") || !strings.Contains(err.Error(), "of 20 failed") {
			t.Errorf("clients fail without a balancer, but the error is %v", err)
		}
	})
	iptables(t, "-F", "FORWARD")
	// A server reports requests to an address that is not the side's.
	rig.side.direct = false
	for _, s := range rig.servers {
		s.Stop()
	}
	rig.servers = nil
	server, err := endpoint.StartLoadServer(t.Context(), rig.world.Host("b1"), harness.ServerPort, netip.MustParsePrefix("192.0.2.0/24"), two.Server)
	if err != nil {
		t.Fatal(err)
	}
	rig.servers = append(rig.servers, server)
	if _, err := endpoint.RunLoad(t.Context(), rig.world.Host("client"), endpoint.LoadConfig{
		Target: rig.target, Sources: clientRange, First: rig.clients(1), Count: 1, Rate: 1, Patience: time.Second, CPU: two.Client}); err != nil {
		t.Fatal(err)
	}
	if err := rig.finish(); err == nil || !strings.Contains(err.Error(), "b1 saw 1 connections") {
		t.Errorf("clients that took another path: %v", err)
	}
}
