// SPDX-License-Identifier: Apache-2.0

// Package endurance measures what load and floods over time do to connections.
package endurance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"beeline.io/beeline/bench/endpoint"
	"beeline.io/beeline/bench/harness"
	"beeline.io/beeline/bench/result"
)

// PartName is the name of the part, which takes longer than all others.
const PartName = "endurance"

// Part is the part with these settings.
func Part(s *Settings) harness.Part {
	run := func(ctx context.Context, b *harness.Bench) error { return runEndurance(ctx, &bench{b, s}) }
	return harness.Part{Name: PartName, Text: "what load and floods over time do to new connections and to idle ones", Named: true, Run: run, Print: printEndurance}
}

// bench is a run of the part.
type bench struct {
	*harness.Bench
	endurance *Settings
}

// Settings are the flags of the part endurance.
type Settings struct {
	sizes     []int
	idle      int // connections to each Service
	load      time.Duration
	udp, tcp  int // clients per second
	inTurn    bool
	flood     time.Duration
	clients   int // besides each flood
	floodRate int
	agent     []string
	setMax    bool
}

// Flags adds the flags of the part.
func (s *Settings) Flags(f *pflag.FlagSet) {
	f.IntSliceVar(&s.sizes, "records", []int{262_144, 16_384, 2_097_152}, "of the part endurance: sizes of the conntrack table, --max-flows and nf_conntrack_max; the load runs at the first")
	f.IntVar(&s.idle, "idle", 1000, "of the part endurance: idle TCP connections to each of the two Services")
	f.DurationVar(&s.load, "load", 5*time.Minute, "of the part endurance: length of the load")
	f.IntVar(&s.udp, "load-udp", 5000, "of the part endurance: one-shot UDP clients per second")
	f.IntVar(&s.tcp, "load-tcp", 3000, "of the part endurance: short TCP connections per second")
	f.BoolVar(&s.inTurn, "load-in-turn", false, "of the part endurance: UDP first and then TCP, each for the whole length")
	f.DurationVar(&s.flood, "flood", 15*time.Second, "of the part endurance: how long honest clients connect during each flood")
	f.IntVar(&s.clients, "flood-clients", 1000, "of the part endurance: honest clients during each flood")
	f.IntVar(&s.floodRate, "flood-rate", 0, "of the part endurance: packets per second of a flood; 0 for as many as the generator can send")
	f.StringArrayVar(&s.agent, "agent-flag", nil, "of the part endurance: a flag of the agent, as in --agent-flag=--snat-ports=61000-61999; more than once")
	f.BoolVar(&s.setMax, "set-conntrack-max", false, "of the part endurance: set the machine's own net.netfilter.nf_conntrack_max to each size for iptables and kube-proxy, and restore it; without it they run only at the machine's size")
}

// Smoke shortens the part for a smoke test.
func (s *Settings) Smoke() {
	s.sizes, s.idle, s.load, s.udp, s.tcp = []int{16_384}, 50, time.Second, 200, 200
	s.flood, s.clients, s.floodRate, s.setMax = time.Second, 50, 5000, false
}

// Check reports the first setting that is out of range.
func (s *Settings) Check() error {
	for _, size := range s.sizes {
		if size < 64 || size > 1<<26 {
			return fmt.Errorf("--records %d: between 64 and %d", size, 1<<26)
		}
	}
	switch {
	case len(s.sizes) == 0:
		return errors.New("--records: name a size")
	case s.idle < 2 || s.idle > 5000:
		return fmt.Errorf("--idle %d: between 2 and 5000", s.idle)
	case s.load < time.Second || s.load > time.Hour:
		return fmt.Errorf("--load %s: between 1s and 1h", s.load)
	case s.udp < 1 || s.udp > 8000:
		return fmt.Errorf("--load-udp %d: between 1 and 8000", s.udp)
	case s.tcp < 2 || s.tcp > 3500:
		return fmt.Errorf("--load-tcp %d: between 2 and 3500", s.tcp)
	case s.flood < time.Second || s.flood > time.Hour:
		return fmt.Errorf("--flood %s: between 1s and 1h", s.flood)
	case s.clients < 2 || float64(s.clients)/s.flood.Seconds() > 2000:
		return fmt.Errorf("--flood-clients %d: at least 2, and at most 2000 per second", s.clients)
	case s.floodRate < 0:
		return fmt.Errorf("--flood-rate %d: not negative", s.floodRate)
	}
	return nil
}

// For the clients of one kind.
var (
	metricAsked    = result.Metric{Name: "asked", Unit: "1", Better: result.None}
	metricFailed   = result.Metric{Name: "failed", Unit: "1", Better: result.Lower}
	metricDelayed  = result.Metric{Name: "delayed", Unit: "1", Better: result.Lower}
	metricRefused  = result.Metric{Name: "refused", Unit: "1", Better: result.None}
	metricReset    = result.Metric{Name: "reset", Unit: "1", Better: result.None}
	metricTimedOut = result.Metric{Name: "timed out", Unit: "1", Better: result.None}
	metricWrong    = result.Metric{Name: "wrong answers", Unit: "1", Better: result.None}
	metricReached  = result.Metric{Name: "clients per second", Unit: "1/s", Better: result.None}
	// Of the whole machine, including other work, during the clients: near 1, clients may have failed for
	// lack of CPU.
	metricBusy  = result.Metric{Name: "share of the CPUs busy", Unit: "1", Better: result.None}
	metricFlood = result.Metric{Name: "flood packets per second", Unit: "1/s", Better: result.None}
)

// Kinds of clients.
const (
	scenarioUDP          = "load: one-shot UDP"
	scenarioClientCloses = "load: short TCP, client closes first"
	scenarioServerCloses = "load: short TCP, server closes first"
	scenarioFloodTCP     = ": TCP clients"
	scenarioFloodUDP     = ": UDP clients"
)

// The floods: SYNs, which the backend answers, and datagrams, which it answers or not.
const (
	floodUnanswered = "flood, datagrams unanswered"
	floodAnswered   = "flood, datagrams answered"
)

// Patience of clients: a resolver's for a query, and a user's.
const (
	patienceUDP = 2 * time.Second
	patience    = 10 * time.Second
)

func runEndurance(ctx context.Context, b *bench) error {
	if b.Two.Client == b.Two.Server {
		return errors.New("the clients and the servers need a CPU each, but there is only one")
	}
	machineMax, err := conntrackMax()
	if err != nil {
		return err
	}
	for turn, size := range b.endurance.sizes {
		for _, side := range sides {
			if side.direct && turn > 0 || !side.direct && b.Only != nil && !b.Only.MatchString(side.name) {
				continue
			}
			records, run := side.records(b, turn, size, machineMax)
			if !run {
				b.progress("%s with %d records: skipped", side.name, size)
				continue
			}
			for _, phase := range phases {
				if phase.once && turn > 0 || phase.long && b.Smoke {
					continue
				}
				if err := measure(ctx, b, side, records, phase); err != nil {
					return fmt.Errorf("%s with %d records, %s: %w", side.name, records, phase.name, err)
				}
			}
		}
	}
	return nil
}

// progress reports progress, on stderr and not with the results.
func (b *bench) progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s  "+format+"\n", append([]any{time.Now().Format(time.TimeOnly)}, args...)...)
}

// An endurancePhase is what happens to a node between opening idle connections and the moment at which they
// speak. Each has a node of its own, unaffected by others.
type endurancePhase struct {
	name string
	once bool // only with the first size
	long bool // omitted from a smoke test: another phase covers the same
	run  func(*enduranceRig, context.Context) error
}

var phases = []endurancePhase{
	{"load", true, false, (*enduranceRig).load},
	{floodUnanswered, false, true, func(rig *enduranceRig, ctx context.Context) error { return rig.flood(ctx, floodUnanswered, false) }},
	{floodAnswered, false, false, func(rig *enduranceRig, ctx context.Context) error { return rig.flood(ctx, floodAnswered, true) }},
}

// measure measures a phase of a side.
func measure(ctx context.Context, b *bench, side enduranceSide, records int, phase endurancePhase) (err error) {
	if b.endurance.setMax && side.conntrack {
		restore, err := setConntrackMax(records)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, restore()) }()
	}
	size := ""
	if !side.direct {
		size = fmt.Sprintf(", %d records", records)
	}
	b.progress("%s%s: %s", side.name, size, phase.name)
	rig, err := newRig(ctx, b, side, records)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rig.end()) }()
	idle, err := rig.startIdle(ctx)
	if err != nil {
		return fmt.Errorf("idle connections: %w", err)
	}
	defer idle.Stop()
	if err := phase.run(rig, ctx); err != nil {
		return err
	}
	if err := rig.speak(idle, phase.name); err != nil {
		return fmt.Errorf("idle connections: %w", err)
	}
	return rig.finish()
}

// Without a balancer the load need not be longer: only TIME_WAIT grows, which is complete after a minute.
const directLoad = 90 * time.Second

// load runs the loads, at the same time or in turn.
func (rig *enduranceRig) load(ctx context.Context) error {
	e := rig.bench.endurance
	length := e.load
	if rig.side.direct {
		length = min(length, directLoad)
	}
	udp := []enduranceClients{{scenario: scenarioUDP, datagrams: true, rate: e.udp, patience: patienceUDP}}
	tcp := []enduranceClients{
		{scenario: scenarioClientCloses, rate: e.tcp / 2, patience: patience},
		{scenario: scenarioServerCloses, serverCloses: true, rate: e.tcp / 2, patience: patience},
	}
	turns := [][]enduranceClients{append(udp, tcp...)}
	if e.inTurn {
		turns = [][]enduranceClients{udp, tcp}
	}
	for _, all := range turns {
		for i := range all {
			all[i].length = length
			all[i].count = int(float64(all[i].rate) * length.Seconds())
		}
		if err := rig.run(ctx, all); err != nil {
			return err
		}
	}
	return nil
}

// enduranceClients are clients of one kind.
type enduranceClients struct {
	scenario                          string
	datagrams, serverCloses, askAgain bool
	rate, count                       int
	length, patience                  time.Duration
}

// run runs clients of several kinds at the same time, to the same Service.
func (rig *enduranceRig) run(ctx context.Context, all []enduranceClients) error {
	var kinds sync.WaitGroup
	results, errs := make([]endpoint.LoadResult, len(all)), make([]error, len(all))
	before := harness.UsageNow()
	for i, c := range all {
		config := endpoint.LoadConfig{
			Target: rig.target, Datagrams: c.datagrams, ServerCloses: c.serverCloses, Sources: clientRange, First: rig.clients(c.count),
			Count: c.count, Rate: c.rate, Patience: c.patience, AskAgain: c.askAgain, CPU: rig.bench.Two.Client,
		}
		kinds.Go(func() { results[i], errs[i] = endpoint.RunLoad(ctx, rig.world.Host("client"), config) })
	}
	kinds.Wait()
	after := harness.UsageNow()
	busy := (after.Busy + after.Stolen - before.Busy - before.Stolen).Seconds() / max((after.All-before.All).Seconds(), 0.01)
	if err := errors.Join(errs...); err != nil {
		return err
	}
	var void error
	for i, c := range all {
		rig.note(c, results[i], busy)
		if n := results[i].Failed(); rig.side.direct && n > 0 {
			void = errors.Join(void, fmt.Errorf("%s: %d of %d failed", c.scenario, n, results[i].Asked))
		}
	}
	return rig.void(void)
}

// void ends a run in which clients failed without any balancer.
func (rig *enduranceRig) void(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("the run is void: clients fail without a balancer, so the clients, the servers or the machine are the limit: %w", err)
}

func (rig *enduranceRig) series(scenario string, parameters result.Parameters) result.Series {
	if parameters == nil {
		parameters = result.Parameters{}
	}
	if !rig.side.direct {
		parameters["records"] = rig.records
	}
	return result.Series{Part: PartName, Scenario: scenario, Side: rig.side.name, Family: "IPv4", Parameters: parameters}
}

// note adds the results of clients.
func (rig *enduranceRig) note(c enduranceClients, r endpoint.LoadResult, busy float64) {
	series := rig.series(c.scenario, result.Parameters{"offered per second": c.rate, "seconds": int(c.length.Seconds())})
	reached := float64(c.rate)
	if r.Sending > 0 {
		reached = float64(r.Asked-1) / r.Sending.Seconds()
	}
	for _, v := range []struct {
		metric result.Metric
		value  float64
	}{
		{metricAsked, float64(r.Asked)}, {metricFailed, float64(r.Failed())}, {metricDelayed, float64(r.Delayed)},
		{metricRefused, float64(r.Refused)}, {metricReset, float64(r.Reset)}, {metricTimedOut, float64(r.TimedOut)}, {metricWrong, float64(r.Wrong)},
		{metricReached, reached}, {metricBusy, busy}, {harness.MetricP50, r.P50}, {harness.MetricP99, r.P99},
	} {
		if r.Answered == 0 && v.metric.Unit == harness.MetricP99.Unit {
			continue // no latencies
		}
		rig.bench.Results.Add(result.Row{Series: series, Metric: v.metric}, v.value)
	}
	rig.bench.progress("%s: %s: asked %d, failed %d, delayed %d, p99 %.0f us", rig.side.name, c.scenario, r.Asked, r.Failed(), r.Delayed, r.P99)
}

// flood runs honest clients during a flood.
func (rig *enduranceRig) flood(ctx context.Context, name string, answered bool) error {
	e := rig.bench.endurance
	before, err := rig.received()
	if err != nil {
		return err
	}
	flood, err := rig.startFlood(ctx, answered)
	if err != nil {
		return err
	}
	defer flood.Stop()
	time.Sleep(min(time.Second, e.flood/5)) // until the flood has begun to fill tables
	half := e.clients / 2
	pace := max(1, int(float64(half)/e.flood.Seconds()))
	honest := []enduranceClients{
		{scenario: name + scenarioFloodTCP, rate: pace, count: half, length: e.flood, patience: patience},
		{scenario: name + scenarioFloodUDP, rate: pace, count: half, length: e.flood, patience: patience, datagrams: true, askAgain: true},
	}
	err = rig.run(ctx, honest)
	sent, finished := flood.Finish()
	if err := errors.Join(err, finished); err != nil {
		return err
	}
	after, err := rig.received()
	if err != nil {
		return err
	}
	arrived := after - before
	if arrived < sent.Packets/2 {
		return fmt.Errorf("the node received %[2]d of the flood's %[1]d packets", sent.Packets, arrived)
	}
	rate := float64(sent.Packets) / sent.Took.Seconds()
	rig.bench.Results.Add(result.Row{Series: rig.series(name, nil), Metric: metricFlood}, rate)
	rig.bench.progress("%s: %s: %.0f packets per second", rig.side.name, name, rate)
	return nil
}

// speak has the idle connections speak.
func (rig *enduranceRig) speak(idle *endpoint.Idle, phase string) error {
	for _, s := range rig.servers {
		if err := s.Speak(); err != nil {
			return err
		}
	}
	all, err := idle.Speak()
	if err != nil {
		return err
	}
	var void error
	for i, service := range []string{"same Service", "other Service"} {
		for _, who := range []struct {
			name  string
			count endpoint.IdleCount
		}{{"client", all[i].Client}, {"server", all[i].Server}} {
			series := rig.series(fmt.Sprintf("%s: idle TCP, %s, %s speaks first", phase, service, who.name), nil)
			failed := who.count.Asked - who.count.Answered
			for _, v := range []struct {
				metric result.Metric
				value  int
			}{
				{metricAsked, who.count.Asked}, {metricFailed, failed}, {metricDelayed, who.count.Delayed},
				{metricReset, who.count.Reset}, {metricTimedOut, failed - who.count.Reset},
			} {
				rig.bench.Results.Add(result.Row{Series: series, Metric: v.metric}, float64(v.value))
			}
			rig.bench.progress("%s: %s: asked %d, failed %d, delayed %d", rig.side.name, series.Scenario, who.count.Asked, failed, who.count.Delayed)
			if rig.side.direct && failed > 0 {
				void = errors.Join(void, fmt.Errorf("%s: %d of %d failed", series.Scenario, failed, who.count.Asked))
			}
		}
	}
	return rig.void(void)
}
