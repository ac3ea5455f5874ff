// SPDX-License-Identifier: Apache-2.0

// Package result is what a run of the benchmark leaves: one file of JSON with the
// machine, the settings, and every sample of every part in rows of one kind. The
// text, the charts and comparisons are made of such a file and of nothing else.
//
// A part reports a sample with File.Add as soon as it has one:
//
//	results.Add(result.Row{
//		Series: result.Series{Part: "rates", Scenario: "TCP, established", Side: "kube-proxy",
//			Family: "IPv4", Parameters: result.Parameters{"services": 5000}},
//		Metric:  result.Metric{Name: "CPU time per packet", Unit: "ns", Better: result.Lower},
//		Against: "direct",
//	}, value)
//
// Add puts the value behind those that the same row has. So the n-th sample of each
// row is that of round n, and sides that took turns can be divided by each other, round
// by round. A row that names another side in Against is such a pair: that side has a
// row that is the same otherwise.
package result

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Schema is the version of the file's format. It changes with the meaning of an existing field.
const Schema = 2

// A File is one run.
type File struct {
	Schema     int       `json:"schema"`
	Program    string    `json:"program"` // its version, with the commit
	Started    time.Time `json:"started"`
	Took       float64   `json:"tookSeconds"`
	Machine    Machine   `json:"machine"`
	LoadBefore string    `json:"loadBefore"` // averages of 1, 5 and 15 minutes
	LoadAfter  string    `json:"loadAfter"`
	Noise      Noise     `json:"noise"`
	Settings   Settings  `json:"settings"`
	Rows       []Row     `json:"rows"`

	at map[string]int // rows by identity
}

// Machine is the kind of machine, not its identity.
type Machine struct {
	CPU        string `json:"cpu"`
	CPUs       int    `json:"cpus"`
	MemoryMiB  uint64 `json:"memoryMiB"`
	Virtual    bool   `json:"virtual"`
	Hypervisor string `json:"hypervisor,omitempty"` // manufacturer and product, from the machine's firmware
	Kernel     string `json:"kernel"`
	JIT        bool   `json:"jit"` // BPF programs are compiled
}

func (m Machine) String() string {
	kind := "machine"
	if m.Virtual {
		kind = "virtual machine"
	}
	if m.Hypervisor != "" {
		kind += " of " + m.Hypervisor
	}
	jit := ""
	if !m.JIT {
		jit = ", BPF is interpreted (net.core.bpf_jit_enable)"
	}
	return fmt.Sprintf("%d-CPU %s (%s), %d MiB, Linux %s%s", m.CPUs, kind, m.CPU, m.MemoryMiB, m.Kernel, jit)
}

// Noise is the share of the machine that the benchmark did not use, from 0 to 1.
type Noise struct {
	Others float64 `json:"others"` // other processes
	Stolen float64 `json:"stolen"` // the hypervisor
}

// TooNoisy is the limit above which differences of a percent mean nothing.
const TooNoisy = 0.05

// Noisy reports whether others were too busy for figures to be trusted.
func (n Noise) Noisy() bool { return n.Others+n.Stolen > TooNoisy }

// Settings are the run's; the same settings on the same machine measure the same.
type Settings struct {
	Parts []string `json:"parts"`
	Runs  int      `json:"runs"` // rounds of each comparison, at most
	Slice float64  `json:"sliceSeconds"`
	CPUs  string   `json:"cpus"` // the value of --cpus
	One   CPUPair  `json:"one"`  // where the ends of one connection run
	Two   CPUPair  `json:"two"`  // where the ends of many run
	Peers []string `json:"peers,omitempty"`
	Smoke bool     `json:"smoke,omitempty"`
}

// CPUPair is where the two ends of a connection run.
type CPUPair struct {
	Client int `json:"client"`
	Server int `json:"server"`
}

// A Series is what was measured.
type Series struct {
	Part     string `json:"part"`
	Scenario string `json:"scenario"`
	Hook     string `json:"hook,omitempty"` // of the timed program: "xdp", "connect4"
	Side     string `json:"side"`           // one of those that took turns
	Family   string `json:"family,omitempty"`
	// Parameters are numbers that the figure depends on: "flows", "connections", "services".
	Parameters Parameters `json:"parameters,omitempty"`
}

// Parameters have names in the plural of what they count.
type Parameters map[string]int

func (p Parameters) String() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(p)) {
		n := p[name]
		if n == 1 {
			name = strings.TrimSuffix(name, "s")
		}
		all = append(all, strconv.Itoa(n)+" "+name)
	}
	return strings.Join(all, ", ")
}

func (s Series) String() string {
	all := []string{s.Part}
	for _, field := range []string{s.Hook, s.Scenario, s.Family, s.Parameters.String(), s.Side} {
		if field != "" {
			all = append(all, field)
		}
	}
	return strings.Join(all, ", ")
}

// A Metric is the figure that was read.
type Metric struct {
	Name   string    `json:"metric"`
	Unit   string    `json:"unit"` // "us", "1/s", "MiB"; "1" for a number of things
	Better Direction `json:"better"`
}

// Direction says which figure is the better one.
type Direction string

// The directions. A figure with none is not compared.
const (
	Lower  Direction = "lower"
	Higher Direction = "higher"
	None   Direction = "none"
)

// A Row is one figure of one series, with all samples in the order of the rounds.
type Row struct {
	Series
	Metric
	Against string    `json:"against,omitempty"` // the side that this one is divided by, round by round
	Samples []float64 `json:"samples"`
}

// Identity is the same for a row of one run and its counterpart in another.
func (r Row) Identity() string {
	return strings.Join([]string{r.Part, r.Scenario, r.Hook, r.Side, r.Family, r.Parameters.String(), r.Name, r.Unit}, "\x00")
}

// Add appends samples to a row, and creates it if there is none.
func (f *File) Add(row Row, samples ...float64) {
	f.index()
	id := row.Identity()
	i, known := f.at[id]
	if !known {
		i = len(f.Rows)
		f.at[id] = i
		row.Samples = nil
		f.Rows = append(f.Rows, row)
	}
	f.Rows[i].Samples = append(f.Rows[i].Samples, samples...)
}

// Samples are the samples of a series in a metric; nil if there are none.
func (f *File) Samples(s Series, m Metric) []float64 {
	f.index()
	if i, known := f.at[Row{Series: s, Metric: m}.Identity()]; known {
		return f.Rows[i].Samples
	}
	return nil
}

// AddSide adds a sample of a side. Others than the first side are compared with that.
func (f *File) AddSide(first string, s Series, m Metric, sample float64) {
	row := Row{Series: s, Metric: m}
	if s.Side != first && m.Better != None {
		row.Against = first
	}
	f.Add(row, sample)
}

// Counterpart returns the samples of the side that a row is compared with.
func (f *File) Counterpart(r Row) []float64 {
	if r.Against == "" {
		return nil
	}
	r.Side = r.Against
	return f.Samples(r.Series, r.Metric)
}

// Of returns the rows of a part in one of its metrics, in order.
func (f *File) Of(part string, m Metric) (rows []Row) {
	for _, r := range f.Rows {
		if r.Part == part && r.Metric == m {
			rows = append(rows, r)
		}
	}
	return rows
}

// Has reports whether a part was measured.
func (f *File) Has(part string) bool {
	return slices.ContainsFunc(f.Rows, func(r Row) bool { return r.Part == part })
}

// Only reports whether only this part was measured.
func (f *File) Only(part string) bool {
	return f.Has(part) && !slices.ContainsFunc(f.Rows, func(r Row) bool { return r.Part != part })
}

func (f *File) index() {
	if f.at != nil {
		return
	}
	f.at = map[string]int{}
	for i, r := range f.Rows {
		f.at[r.Identity()] = i
	}
}
